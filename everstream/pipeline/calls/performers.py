"""Perform calls: on a thread with an event loop, or at once in virtual time.

A performer is given calls and returns them with their answers once these are durable, or at once if
they are not logged. It never touches the operator: the shard's thread takes what has arrived.
"""

import asyncio
import inspect
import logging
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Any, Final, Protocol

from everstream.errors import EnvironmentFault, UserError
from everstream.pipeline.calls.attempts import Answer, Limiter, answer
from everstream.pipeline.calls.options import CallOptions
from everstream.pipeline.calls.result_log import Entry, Position, ResultLog, entry_of
from everstream.state.saved import dumps

WRITE_AGAIN_S: Final = 0.5
"""After the log could not be written."""
CLOSE_S: Final = 5.0
"""How long to wait for a thread that ends."""
_log = logging.getLogger("everstream")


@dataclass(slots=True, eq=False)
class Call:
    """One record, from when it came until its answer leaves the operator."""

    key: Hashable
    record: Any
    content: str
    """Its content key; empty if nothing needs it."""
    born_s: float
    answer: Answer | None = None
    saved: bool = False
    """Whether the answer is durable, so that it may leave the operator."""
    keeps_errors: bool = False
    """Whether an error is an answer, too: its record is then left out, also after a failure."""

    @property
    def lasts(self) -> bool:
        """Whether it has an answer that must survive a failure."""
        return self.answer is not None and (self.answer.raised is None or self.keeps_errors)


class Performer(Protocol):
    """What the operator asks of either kind."""

    def submit(self, calls: list[Call]) -> None:
        """Perform these, in this order as far as there is room."""

    def log_only(self, calls: list[Call]) -> None:
        """Log these, whose answers are known without a call."""

    def take(self) -> list[Call]:
        """The calls whose answers are durable, since the last time."""

    @property
    def next_s(self) -> float:
        """When `take` has something, in processing time; infinite if that is not known."""

    def seal(self) -> tuple[list[Call], int]:
        """For a checkpoint: the calls whose answers have come, and the object that has the last."""

    def prune(self, covered: Position) -> None:
        """Remove the objects of the log that no checkpoint needs."""

    def close(self) -> None:
        """End. Answers that have come are logged; calls under way are cancelled."""


class ThreadedCalls:
    """Real time: an event loop on a thread, a pool for blocking functions, a thread that logs."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        options: CallOptions,
        shards: int,
        log: ResultLog | None,
        arrived: Callable[[], None],
        name: str,
    ) -> None:
        """arrived: called on another thread when `take` has something."""
        self._function = function
        self._options = options
        self._log = log
        self._arrived = arrived
        self._limiter = Limiter(options.rate, shards, monotonic)
        self._waiting: deque[Call] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._done: deque[Call] = deque()
        """Durable, or not to be logged."""
        self._lock = threading.Lock()
        self._unsealed: list[Call] = []
        self._sealed: deque[tuple[int, list[Call]]] = deque()
        """Objects of the log to be written."""
        self._number = 0
        self._to_write = threading.Event()
        self._prunes: list[Position] = []
        self._closing = False
        self._pool = ThreadPoolExecutor(options.concurrency, f"everstream-{name}")
        self._loop = asyncio.new_event_loop()
        self._threads = [threading.Thread(target=self._run_loop, name=f"{name}-calls", daemon=True)]
        if log is not None:
            self._threads.append(
                threading.Thread(target=self._write, name=f"{name}-log", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    next_s = math.inf

    def submit(self, calls: list[Call]) -> None:
        self._waiting.extend(calls)
        self._loop.call_soon_threadsafe(self._fill)

    def log_only(self, calls: list[Call]) -> None:
        with self._lock:
            self._unsealed += calls
        self._to_write.set()

    def take(self) -> list[Call]:
        taken = []
        while self._done:
            taken.append(self._done.popleft())
        return taken

    def seal(self) -> tuple[list[Call], int]:
        with self._lock:
            self._seal()
            arrived = [*self._done, *(call for _, calls in self._sealed for call in calls)]
            number = self._number
        self._to_write.set()
        return arrived, number

    def prune(self, covered: Position) -> None:
        if self._log is not None:
            self._prunes.append(covered)
            self._to_write.set()

    def close(self) -> None:
        self._closing = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._end)
        self._threads[0].join(CLOSE_S)
        self._to_write.set()
        for thread in self._threads[1:]:
            thread.join(CLOSE_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # On the thread of the loop.

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._call = _as_coroutine(self._function, self._in_thread)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_S / 2))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _end(self) -> None:
        self._waiting.clear()
        self._loop.stop()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._options.concurrency:
            task = self._loop.create_task(self._perform(self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._waiting and not self._closing:
            self._fill()

    async def _perform(self, call: Call) -> None:
        call.answer = await answer(self._call, call.record, self._options, self._limiter)
        if self._log is None or not call.lasts:
            self._done.append(call)
            self._arrived()
            return
        with self._lock:
            self._unsealed.append(call)
        self._to_write.set()

    async def _in_thread(self, function: Callable[[Any], Any], record: Any) -> Any:
        return await self._loop.run_in_executor(self._pool, function, record)

    # On the thread that writes the log.

    def _write(self) -> None:
        assert self._log is not None
        warned = False
        while True:
            self._to_write.wait()
            self._to_write.clear()
            closing = self._closing
            while (sealed := self._next_object()) is not None:
                number, calls = sealed
                try:
                    self._log.write(number, [_entry(call) for call in calls if call.lasts])
                except (EnvironmentFault, OSError) as error:
                    if closing:
                        return
                    if not warned:
                        _log.warning("answers cannot be logged, and wait: %s", error)
                    warned = True
                    threading.Event().wait(WRITE_AGAIN_S)
                    closing = self._closing
                    continue
                except Exception as error:
                    _sort_out_unsaveable(calls, error)
                    continue
                with self._lock:
                    self._sealed.popleft()
                    self._done.extend(calls)
                self._arrived()
                warned = False
            while self._prunes:
                with suppress(EnvironmentFault, OSError):  # the next one removes them, too
                    self._log.prune(self._prunes.pop())
            if closing:
                return

    def _next_object(self) -> tuple[int, list[Call]] | None:
        with self._lock:
            if not self._sealed:
                self._seal()
            return self._sealed[0] if self._sealed else None

    def _seal(self) -> None:
        if self._unsealed:
            self._number += 1
            self._sealed.append((self._number, self._unsealed))
            self._unsealed = []


class VirtualCalls:
    """Virtual time: a call is made at once, and its answer comes when its time has passed.

    For the simulator and the harness: with the same seed everything happens in the same order.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        options: CallOptions,
        shards: int,
        log: ResultLog | None,
        now_s: Callable[[], float],
        delay_s: Callable[[], float],
    ) -> None:
        self._loop = _VirtualLoop()
        self._call = _as_coroutine(function, _at_once)
        self._options = options
        self._log = log
        self._now_s = now_s
        self._delay_s = delay_s
        self._start_s = 0.0
        self._limiter = Limiter(options.rate, shards, lambda: self._start_s + self._loop.time())
        self._waiting: deque[Call] = deque()
        self._due: list[tuple[float, int, Call, bool]] = []
        """And whether it was a call."""
        self._order = count()
        self._running = 0
        self._number = 0

    def submit(self, calls: list[Call]) -> None:
        self._waiting.extend(calls)
        self._fill(self._now_s())

    def log_only(self, calls: list[Call]) -> None:
        for call in calls:
            heappush(self._due, (self._now_s(), next(self._order), call, False))

    def _fill(self, now_s: float) -> None:
        while self._waiting and self._running < self._options.concurrency:
            call = self._waiting.popleft()
            self._running += 1
            self._start_s, self._loop.passed_s = now_s, 0.0
            call.answer = self._loop.run_until_complete(
                answer(self._call, call.record, self._options, self._limiter, lambda: 1.0)
            )
            due_s = now_s + self._loop.passed_s + self._delay_s()
            heappush(self._due, (due_s, next(self._order), call, True))

    @property
    def next_s(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def take(self) -> list[Call]:
        now_s, taken = self._now_s(), []
        while self._due and self._due[0][0] <= now_s:
            due_s, order, call, asked = heappop(self._due)
            if self._log is not None and call.lasts:
                try:
                    self._log.write(self._number + 1, [_entry(call)])
                except EnvironmentFault:
                    heappush(self._due, (now_s + WRITE_AGAIN_S, order, call, asked))
                    continue
                except Exception as error:
                    _sort_out_unsaveable([call], error)
                else:
                    self._number += 1
            self._running -= asked
            taken.append(call)
            self._fill(due_s)
        return taken

    def seal(self) -> tuple[list[Call], int]:
        return [], self._number

    def prune(self, covered: Position) -> None:
        if self._log is not None:
            with suppress(EnvironmentFault):
                self._log.prune(covered)

    def close(self) -> None:
        self._loop.close()


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Nothing happens outside: when all tasks sleep, the time of the next one has come."""

    passed_s = 0.0

    def time(self) -> float:
        return self.passed_s

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            self.passed_s = max(self.passed_s, scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]


async def _at_once(function: Callable[[Any], Any], record: Any) -> Any:
    return function(record)


def _as_coroutine(
    function: Callable[[Any], Any],
    in_thread: Callable[[Callable[[Any], Any], Any], Coroutine[Any, Any, Any]],
) -> Callable[[Any], Awaitable[Any]]:
    """Coroutine functions run on the loop, all others in a thread; what they return is awaited."""
    called = getattr(type(function), "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        return function

    async def call(record: Any) -> Any:
        value = await in_thread(function, record)
        return await value if inspect.isawaitable(value) else value

    return call


def _entry(call: Call) -> Entry:
    assert call.answer is not None
    return entry_of(call.key, call.content, call.answer)


def _sort_out_unsaveable(calls: list[Call], error: Exception) -> None:
    """Turn the answers that cannot be saved into errors; all of them, if that is not what failed."""
    bad = []
    for call in calls:
        try:
            if call.lasts:
                dumps(_entry(call))
        except Exception:
            bad.append(call)
    for call in bad or calls:
        call.keeps_errors = False
        unsaveable = UserError(
            f"the answer of a function given to map_async cannot be saved: {error}. Return plain data, "
            "not a response or a connection."
        )
        call.answer = Answer(None, unsaveable.message, unsaveable)
