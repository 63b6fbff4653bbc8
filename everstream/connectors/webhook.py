"""Webhooks: records posted as JSON, with a key by which the receiver recognizes repetitions.

With `key=` each record is posted when it comes, under its own key; a replay gives the same keys if
the pipeline computes the same records. Without it, records are kept in the store until their
checkpoint is stable and are then posted in batches. No replay can change what a checkpoint
contains: a batch that is sent again has the same bytes and the same key.

Temporary failures are retried with growing pauses: cut connections, timeouts, 5xx, 429 and the
like, no sooner than the server asks for. Any other answer is an error with the beginning of the
server's response. Headers, and all of the URL but its host, may be secrets: they are in no error,
no `repr` and no stored pickle.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

import polars as pl

from everstream.connectors.columns import as_frame
from everstream.connectors.files.json_lines import JsonEncoder
from everstream.connectors.files.parts import PartTransaction
from everstream.connectors.options import KeyTemplate, at_least_one
from everstream.connectors.refusing import encoded_or_refused
from everstream.connectors.retry import Deadline
from everstream.connectors.staged import StagedTransaction, StagedWriter, waiting_folder
from everstream.errors import ConnectionLost, UserError
from everstream.extras import extra
from everstream.hiding import place_of, without
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer

AGAIN: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Answers after which a retry may succeed. 409: a request with this key is being processed."""
CONNECT_TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
SHOWN: Final = 300
READABLE: Final = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")


def driver() -> Any:
    with extra("http"):
        import urllib3
    return urllib3


@dataclass(frozen=True)
class Request:
    """What is posted, and the key by which a server recognizes it."""

    key: str
    body: bytes


class Endpoint:
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
        post_each = map if self._threads is None else self._threads.map
        for _ in post_each(self.post, requests):
            pass

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


ENDING: Final = ".jsonl"
LONGEST_NAME: Final = 150


class Webhook(Sink):
    """Posts records to a web server as JSON, each request with an `Idempotency-Key` header.

    With `key="order-{id}"`, or the name of a column: one request per record, at once. The key must
    identify the record, because a receiver treats two requests with one key as one. Without a key:
    one request per `batch` records of a checkpoint, a JSON list, when the checkpoint is stable.

    Idempotent: after a failure, requests are sent again under the same keys. A receiver that
    processes each key once sees every record once. Cut connections, timeouts, 5xx and 429 are
    retried for `patience`; any other answer ends the run. With `connections` above 1, requests may
    arrive in another order. `headers` (such as Authorization) and the URL are never stored.

    >>> orders = es.Pipeline("to-web").source(es.FromList([{"id": 7, "cents": 250}]))
    >>> hook = es.Webhook("https://example.org/orders", key="order-{id}")
    >>> pipeline = orders.sink(hook, shards=1)
    """

    delivery = Delivery.IDEMPOTENT

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        batch: int = 100,
        headers: Mapping[str, str] | None = None,
        connections: int = 1,
        timeout: str | float = "30s",
        patience: str | float = "60s",
    ) -> None:
        at_least_one(batch=batch, connections=connections)
        self._address = Endpoint(url, headers or {}, seconds(timeout), seconds(patience))
        self._key = None if key is None else KeyTemplate(key)
        self._batch = batch
        self._connections = connections

    def open(self, shard: SinkShard) -> Writer:
        if self._key is not None:
            return _RecordWriter(self._address, shard, self._key, self._connections)
        return _BatchWriter(shard, Sending(self._address, self._batch, self._connections))

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        if self._key is None:
            waiting_folder(store, operator, ENDING).start_fresh(pipeline, operator, replace)


class _RecordWriter(Writer):
    def __init__(
        self, address: Endpoint, shard: SinkShard, key: KeyTemplate, connections: int
    ) -> None:
        self._shard = shard
        self._key = key
        self._encoder = JsonEncoder(shard.operator)
        self._address = address
        self._connections = connections
        self._poster: Poster | None = None

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        requests = encoded_or_refused(batch, self._requests, self._shard.operator)
        if self._poster is None:
            self._poster = Poster(self._address, self._connections)
        self._poster.post_all(requests)

    def _requests(self, batch: Batch) -> list[Request]:
        lines = self._encoder.encode(batch).split(b"\n")[:-1]
        return [Request(*both) for both in zip(self._keys(batch), lines, strict=True)]

    def _keys(self, batch: Batch) -> list[str]:
        operator = self._shard.operator
        if not isinstance(batch, pl.DataFrame) and isinstance(batch[0], dict):
            columns = self._key.columns  # other columns need not be valid
            batch = [{name: record[name] for name in columns if name in record} for record in batch]
        return self._key.of(as_frame(batch, operator), f"operator '{operator}'").to_list()

    def close(self) -> None:
        if self._poster is not None:
            self._poster.close()
            self._poster = None


@dataclass(frozen=True)
class Sending:
    """How pending records become requests; belongs to the run that sends them, never saved."""

    address: Endpoint
    batch: int
    connections: int

    def send(self, name: str, lines: list[bytes]) -> None:
        starts = range(0, len(lines), self.batch)
        bodies = [b"[" + b",".join(lines[at : at + self.batch]) + b"]" for at in starts]
        with closing(Poster(self.address, self.connections)) as poster:
            poster.post_all([Request(f"{name}-{n}", body) for n, body in enumerate(bodies)])


@dataclass
class WebhookTransaction(StagedTransaction, word="webhook-transaction"):
    """Records waiting to be posted, in batches as large as when they were written."""

    batch: int
    target: Sending | None = field(default=None, repr=False, compare=False, kw_only=True)

    def deliver(self) -> None:
        assert self.target is not None
        try:
            with self.content() as file:
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return  # all of them were already posted
        replace(self.target, batch=self.batch).send(self.name, lines)

    @property
    def name(self) -> str:
        """The prefix of the keys of its requests, different from that of all other records.

        The token was drawn when the records were first written: a run that rolls back and computes
        others for a checkpoint of the same number has another.
        """
        part, token = self.part.part, self.part.pending.token
        return f"{part.owner[:LONGEST_NAME]}-{part.shard}-{part.checkpoint}-{token}"


class _BatchWriter(StagedWriter):
    def __init__(self, shard: SinkShard, sending: Sending) -> None:
        super().__init__(shard, ENDING)
        self._encoder = JsonEncoder(shard.operator)
        self._sending = sending

    def encode(self, batch: Batch) -> bytes:
        return encoded_or_refused(batch, self._encoder.encode, self._shard.operator)

    def stage(self, part: PartTransaction) -> WebhookTransaction:
        return WebhookTransaction(part, part.checkpoint, self._sending.batch)

    def target(self) -> Sending:
        return self._sending
