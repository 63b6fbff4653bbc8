"""The options of `map_async`: rate limits, a cache, retries; checked when the pipeline is written."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args

from everstream.errors import UserError
from everstream.pipeline.checkpointing import seconds

Replay: TypeAlias = Literal["logged", "repeat"]
_PER_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class RetryAfter(Exception):
    """Raise or return it in a function for `map_async`: the service asks to be left alone for a while.

    All calls of the shard wait that long. The call is then repeated, if it has `retries` left.

    >>> error = es.RetryAfter("2s", "too many requests")
    >>> error.retry_after, str(error)
    (2.0, 'too many requests')
    """

    def __init__(self, wait: str | float | timedelta, message: str = "") -> None:
        """wait: a duration such as "2s", a timedelta or a number of seconds."""
        super().__init__(message or f"retry after {wait}")
        self.retry_after = _seconds(wait)

    def __reduce__(self) -> tuple[Any, ...]:
        return (RetryAfter, (self.retry_after, str(self)))


@dataclass(frozen=True)
class RateLimit:
    """How often `map_async` may call: `calls` per time, a `budget` of costs per time, or both.

    Calls are spaced evenly. The limit is for the whole operator: each of its shards gets its part.

    >>> tokens = es.RateLimit(budget=90_000, cost=lambda record: record["tokens"], per="1m")
    >>> tokens.per_s
    60.0
    """

    calls: float | None = None
    """Calls per `per`."""
    per: str | float | timedelta = "1s"
    """The time that `calls` and `budget` are for."""
    budget: float | None = None
    """The sum of costs per `per`."""
    cost: Callable[[Any], float] | None = None
    """What the call for a record costs."""

    def __post_init__(self) -> None:
        if self.calls is None and self.budget is None:
            raise UserError("es.RateLimit needs calls=, or budget= and cost=.")
        if (self.budget is None) != (self.cost is None):
            raise UserError("es.RateLimit: budget= and cost= belong together.")
        for name in ("calls", "budget"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"es.RateLimit({name}={value!r}): give a number above 0.")
        if not 0 < self.per_s < math.inf:
            raise UserError(f"es.RateLimit(per={self.per!r}): give a duration above 0.")

    @property
    def per_s(self) -> float:
        return _seconds(self.per)

    @staticmethod
    def of(given: "RateLimit | str | float | None") -> "RateLimit | None":
        """A limit as written: a number of calls per second, "100/s", "90/min" or a `RateLimit`."""
        if given is None or isinstance(given, RateLimit):
            return given
        if isinstance(given, str):
            match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|m|min|h)\s*", given)
            if match is None:
                raise UserError(f"rate={given!r}: write it like '100/s', '90/min' or '1000/h'.")
            return RateLimit(calls=float(match[1]), per=_PER_S[match[2]])
        return RateLimit(calls=given)


@dataclass(frozen=True)
class AnswerCache:
    """How `map_async` reuses answers: for equal records, for a time.

    It is in the memory of each shard and is not part of a checkpoint: after a failure it is empty.

    >>> es.AnswerCache("10m", key=lambda order: order["customer"]).expire_s
    600.0
    """

    expire: str | float | timedelta = "10m"
    """How long an answer is used, from when it came."""
    entries: int = 10_000
    """How many answers are kept; beyond that, the one unused longest is removed."""
    key: Callable[[Any], Any] | None = None
    """What the answer depends on; default: the whole record."""

    def __post_init__(self) -> None:
        if not self.expire_s > 0:
            raise UserError(f"es.AnswerCache(expire={self.expire!r}): give a duration above 0.")
        if self.entries < 1:
            raise UserError(f"es.AnswerCache(entries={self.entries!r}): give a number from 1 up.")

    @property
    def expire_s(self) -> float:
        return _seconds(self.expire)


@dataclass(frozen=True)
class CallOptions:
    """All options of one `map_async`."""

    concurrency: int
    timeout_s: float | None
    retries: int
    backoff_s: float
    rate: RateLimit | None
    ordered: bool
    replay: Replay
    cache: AnswerCache | None

    @staticmethod
    def of(
        concurrency: int,
        timeout: str | float | timedelta | None,
        retries: int,
        backoff: str | float | timedelta,
        rate: "RateLimit | str | float | None",
        ordered: bool,
        replay: Replay,
        cache: "AnswerCache | str | float | timedelta | None",
    ) -> "CallOptions":
        """As the user wrote them; a UserError if one of them is not valid."""
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise UserError(f"map_async(concurrency={concurrency!r}): give a number from 1 up.")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise UserError(f"map_async(retries={retries!r}): give a number from 0 up.")
        if replay not in get_args(Replay):
            raise UserError(f"map_async(replay={replay!r}): use 'logged' or 'repeat'.")
        timeout_s = None if timeout is None else _seconds(timeout)
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise UserError(f"map_async(timeout={timeout!r}): the time must be positive.")
        backoff_s = _seconds(backoff)
        if not 0 <= backoff_s < math.inf:
            raise UserError(f"map_async(backoff={backoff!r}): the time cannot be negative.")
        if cache is not None and not isinstance(cache, AnswerCache):
            cache = AnswerCache(cache)
        limit = RateLimit.of(rate)
        return CallOptions(
            concurrency, timeout_s, retries, backoff_s, limit, ordered, replay, cache
        )


def _seconds(duration: str | float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else seconds(duration)
