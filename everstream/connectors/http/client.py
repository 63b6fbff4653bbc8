"""Posts to a web server until it accepts a request, or refuses it for good.

Temporary failures are retried with growing pauses: cut connections, timeouts, 5xx, 429 and the
like, no sooner than the server asks for. Any other answer is an error with the beginning of the
server's response. Headers, and all of the URL but its host, may be secrets: they are in no error,
no `repr` and no stored pickle.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

from everstream.connectors.retry import Deadline
from everstream.errors import ConnectionLost, UserError
from everstream.extras import extra
from everstream.hiding import place_of, without

AGAIN: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Answers after which a retry may succeed. 409: a request with this key is being processed."""
CONNECT_TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
SHOWN: Final = 300
READABLE: Final = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")


def driver() -> Any:
    """The urllib3 module, or a UserError that explains how to install it."""
    with extra("http"):
        import urllib3
    return urllib3


@dataclass(frozen=True)
class Request:
    """What is posted, and the key by which a server recognizes it."""

    key: str
    body: bytes


class Endpoint:
    """Where to post, with which headers and timeouts."""

    def __init__(
        self, url: str, headers: Mapping[str, str], timeout_s: float, patience_s: float
    ) -> None:
        driver()
        try:
            parts, place = urlsplit(url), place_of(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            sound = False
        if not sound:
            raise UserError(
                "the URL of the webhook is not valid: write it as https://host/path, with special "
                "characters percent-encoded (an @ as %40)."
            )
        self.place = place.removesuffix(parts.path)
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self._url = url
        self._headers = {"Content-Type": "application/json", **headers}
        self._secrets = [*headers.values(), parts.password, parts.path.strip("/"), parts.query]

    def __repr__(self) -> str:
        return self.place

    def opened(self, connections: int) -> "Poster":
        return Poster(self, connections)

    def post(self, pool: Any, request: Request) -> Any:
        """One attempt; raises what urllib3 raises."""
        headers = {**self._headers, "Idempotency-Key": quote(request.key, safe=READABLE)}
        return pool.request(
            "POST", self._url, body=request.body, headers=headers, preload_content=False
        )

    def without_secrets(self, text: str) -> str:
        return without(text, self._secrets, SHOWN)


class Poster:
    """Posts over connections that stay open; belongs to one process."""

    def __init__(self, address: Endpoint, connections: int) -> None:
        urllib3 = driver()
        self._address = address
        self._errors = urllib3.exceptions.HTTPError
        self._pool = urllib3.PoolManager(
            maxsize=connections,
            retries=False,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=address.timeout_s),
        )
        self._threads = ThreadPoolExecutor(connections) if connections > 1 else None

    def post_all(self, requests: list[Request]) -> None:
        """Post all of them, in order if there is one connection; raises if one is not accepted."""
        if self._threads is None:
            for request in requests:
                self.post(request)
        else:
            for done in [self._threads.submit(self.post, request) for request in requests]:
                done.result()

    def post(self, request: Request) -> None:
        deadline = Deadline(self._address.patience_s, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            problem, asked_s = self._try(request)
            if problem is None:
                return
            if not deadline.pause(asked_s):
                raise ConnectionLost(
                    f"{self._address.place} did not accept a request for "
                    f"{self._address.patience_s:g} s: {problem}. The pipeline resumes from its last "
                    "checkpoint; patience= sets how long to retry."
                )

    def _try(self, request: Request) -> tuple[str | None, float]:
        """The problem, if a retry may succeed, and how long the server asks to wait."""
        try:
            response = self._address.post(self._pool, request)
            text = response.read(4 * SHOWN).decode(errors="replace")
            response.drain_conn()
        except (self._errors, OSError) as error:
            return self._address.without_secrets(type(error).__name__), 0.0
        if 200 <= response.status < 300:
            return None, 0.0
        answer = f"it answered {response.status} {self._address.without_secrets(text)}".rstrip()
        if response.status in AGAIN:
            return answer, wait_asked_for_s(response.headers.get("Retry-After"), datetime.now(UTC))
        raise UserError(
            f"{self._address.place} refuses a request: {answer}\n"
            f"  Idempotency-Key: {request.key[:SHOWN]}\n"
            "Check the URL, the headers and the form of the records; redirects are not followed."
        )

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._pool.clear()


def wait_asked_for_s(header: str | None, now: datetime) -> float:
    """The seconds of a Retry-After header: a number, or a date."""
    if not header:
        return 0.0
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - now).total_seconds())
    except (ValueError, TypeError):
        return 0.0
