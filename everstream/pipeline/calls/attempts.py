"""One call until it has an outcome: rate limits, timeouts, retries, and services that ask to wait.

The same coroutine runs on a real event loop and on one in virtual time, so it takes all time from
the loop it runs on and from the limiter's clock.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

from everstream.pipeline.calls.options import CallOptions, RateLimit
from everstream.pipeline.rejects import describe

LONGEST_BACKOFF_S: Final = 30.0
_TRY_LATER: Final = (429, 503)
"""Too many requests; service unavailable."""


@dataclass(slots=True)
class Answer:
    """What came of a call: a value, or why there is none."""

    value: Any = None
    error: str = ""
    """Empty if there is a value."""
    raised: Exception | None = None
    """The exception itself, in the process in which it was raised."""


class Limiter:
    """Spaces calls evenly: each takes its share of the time, and `pause` stops all for a while."""

    def __init__(self, rate: RateLimit | None, shards: int, clock_s: Callable[[], float]) -> None:
        """clock_s: any clock that never goes back."""
        self._rate = rate
        self._shards = shards
        self._clock_s = clock_s
        self._free_s = {"calls": 0.0, "budget": 0.0}
        """When the next call may begin, for each limit."""
        self._paused_until_s = 0.0

    def reserve(self, record: Any) -> float:
        """Take the next place. Returns the time until it comes, in seconds."""
        rate = self._rate
        if rate is None and not self._paused_until_s:
            return 0.0
        now_s = self._clock_s()
        begin_s = max(now_s, self._paused_until_s)
        if rate is not None:
            wanted = [("calls", rate.calls, 1.0)]
            if rate.cost is not None:
                wanted.append(("budget", rate.budget, float(rate.cost(record))))
            limits = [(name, most, cost) for name, most, cost in wanted if most is not None]
            begin_s = max(begin_s, *(self._free_s[name] for name, _, _ in limits))
            for name, most, cost in limits:
                self._free_s[name] = begin_s + cost * rate.per_s * self._shards / most
        return begin_s - now_s

    def pause(self, wait_s: float) -> None:
        """No call begins for this long."""
        self._paused_until_s = max(self._paused_until_s, self._clock_s() + wait_s)

    @property
    def paused_s(self) -> float:
        return self._paused_until_s - self._clock_s()


async def answer(
    call: Callable[[Any], Awaitable[Any]],
    record: Any,
    options: CallOptions,
    limiter: Limiter,
    chance: Callable[[], float] = random.random,
) -> Answer:
    """Call until there is a value or no retry is left; never raises an Exception.

    chance: spreads the retries, so that calls that failed together do not return together.
    """
    attempt = 0
    while True:
        try:
            if (wait_s := limiter.reserve(record)) > 0:
                await asyncio.sleep(wait_s)
                while (wait_s := limiter.paused_s) > 0:
                    await asyncio.sleep(wait_s)
            if options.timeout_s is None:
                value = await call(record)
            else:
                value = await _in_time(call, record, options.timeout_s)
            later_s = _asked_to_wait(value)
            if later_s is None:
                return Answer(value)
            error: Exception = value if isinstance(value, Exception) else _refused(value)
        except Exception as raised:
            error, later_s = raised, wait_asked_by(raised)
        if attempt >= options.retries:
            return Answer(None, describe(error), error)
        attempt += 1
        if later_s is not None:
            limiter.pause(later_s)
        longest_s = min(LONGEST_BACKOFF_S, options.backoff_s * 2 ** (attempt - 1))
        await asyncio.sleep(max(later_s or 0.0, longest_s * (0.5 + 0.5 * chance())))


async def _in_time(call: Callable[[Any], Awaitable[Any]], record: Any, timeout_s: float) -> Any:
    expires = asyncio.timeout(timeout_s)
    try:
        async with expires:
            return await call(record)
    except TimeoutError as error:
        if expires.expired():
            raise TimeoutError(f"no answer within {timeout_s:g} s") from error
        raise


def wait_asked_by(error: BaseException) -> float | None:
    """The seconds that an exception asks to wait; None if it does not.

    Its attribute `retry_after`, or the header Retry-After of its `response` or its `headers`, as
    the exceptions of httpx, requests, aiohttp and urllib have them.
    """
    waits = _as_seconds(getattr(error, "retry_after", None))
    if waits is not None:
        return waits
    for holder in (getattr(error, "response", None), error):
        waits = _in_headers(holder)
        if waits is not None:
            return waits
    return None


def _asked_to_wait(value: Any) -> float | None:
    """The same for a value that was returned: a `RetryAfter`, or a response that says 429 or 503."""
    if isinstance(value, Exception):
        return wait_asked_by(value)
    status = getattr(value, "status_code", None)
    if not isinstance(status, int):
        status = getattr(value, "status", None)
    if isinstance(status, int) and status in _TRY_LATER and hasattr(value, "headers"):
        return _in_headers(value) or 0.0
    return None


def _refused(response: Any) -> Exception:
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    return RuntimeError(f"the service answered with status {status}")


def _in_headers(holder: Any) -> float | None:
    get = getattr(getattr(holder, "headers", None), "get", None)
    if get is None:
        return None
    with contextlib.suppress(Exception):  # the class of the headers may be anybody's
        return _as_seconds(get("Retry-After") or get("retry-after"))
    return None


def _as_seconds(given: Any) -> float | None:
    if isinstance(given, timedelta):
        return max(0.0, given.total_seconds())
    if isinstance(given, int | float) and not isinstance(given, bool):
        return max(0.0, float(given))
    if not isinstance(given, str):
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(given))
    with contextlib.suppress(ValueError, TypeError):
        date = parsedate_to_datetime(given)
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    return None
