"""What the Redis sink and lookup share: connections, retries, errors that hide the password.

redis-py is an optional package. It is imported when the first connection is made; if it is missing,
the error shows the command that installs it.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from everstream.connectors.retry import Deadline
from everstream.errors import ConnectionLost, ConnectorError, UserError
from everstream.extras import extra
from everstream.hiding import place_of, without
from everstream.pipeline.checkpointing import seconds

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
SCHEMES: Final = ("redis", "rediss", "unix")
UNREADABLE: Final = (
    "the URL of the Redis server is not valid. Write it as redis://host:6379/0, with rediss:// for "
    "TLS, and redis://user:password@host:6379/0 with special characters percent-encoded."
)


def driver() -> Any:
    """The redis module, or a UserError that explains how to install it."""
    with extra("redis"):
        import redis
    return redis


class RedisServer:
    """Where a server is, and how long to retry; pickles without its connection.

    Messages show host, port and number of the database, never the user.
    """

    def __init__(self, url: str, patience: str | float) -> None:
        driver()
        self._url = url
        self._client: Any = None
        self.patience_s = seconds(patience)
        self.place = _place(url)

    def __repr__(self) -> str:
        return self.place

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def ask(self, question: Callable[[Any], T]) -> T:
        """The answer to `question(client)`, asked again over new connections, for the patience."""
        redis = driver()
        deadline = Deadline(self.patience_s, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                return question(self._connected())
            except (redis.AuthenticationError, redis.ResponseError) as error:
                raise self._refused(error) from None
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                problem = self._text(error)
            self.close()
            if not deadline.pause():
                raise ConnectionLost(
                    f"no answer from the Redis server {self.place} for {self.patience_s:g} s: "
                    f"{problem}. Check that it runs and can be reached; the pipeline "
                    "resumes from its last checkpoint. patience= sets how long to retry."
                ) from None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Any:
        if self._client is None:
            redis = driver()
            try:
                self._client = redis.Redis.from_url(
                    self._url,
                    socket_connect_timeout=CONNECT_TIMEOUT_S,
                    socket_timeout=ANSWER_TIMEOUT_S,
                    client_name="everstream",
                    retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
                )
            except (ValueError, TypeError):
                # The error quotes parts of the URL, and any part may be the password.
                raise UserError(UNREADABLE) from None
        return self._client

    def _refused(self, error: Exception) -> ConnectorError | UserError:
        answer = self._text(error)
        if answer.startswith(("OOM", "MISCONF", "READONLY", "MASTERDOWN", "CLUSTERDOWN")):
            return ConnectionLost(
                f"the Redis server {self.place} accepts no writes: {answer}. Give it memory, or a "
                "working disk, or name the primary; the pipeline resumes from its last checkpoint."
            )
        return UserError(
            f"the Redis server {self.place} refuses: {answer}. Check user, password and their "
            "rights, and that the keys hold values of this type."
        )

    def _text(self, error: Exception) -> str:
        return without(str(error), [urlsplit(self._url).password]).rstrip(".")


def _place(url: str) -> str:
    """The URL without user, password and options."""
    try:
        parts, place = urlsplit(url), place_of(url)
    except ValueError:
        raise UserError(UNREADABLE) from None
    if parts.scheme not in SCHEMES or not (parts.hostname or parts.scheme == "unix"):
        raise UserError(UNREADABLE)
    return place
