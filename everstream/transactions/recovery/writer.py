"""Writes to a log in order, on a thread of its own, while the next epoch runs.

Writes that queue up while the disk is busy share one sync, so a stream that is faster than its
disk pays for the bytes, not for the number of its epochs.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from everstream.transactions.errors import LogError

_IN_FLIGHT = 16

Write = Callable[[], None]


class LogWriter:
    """`durable_epoch` says how far what was submitted has reached the disk."""

    def __init__(self, sync: Write, durable_epoch: int) -> None:
        self._sync = sync
        self.durable_epoch = durable_epoch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transaction-log")
        self._queue: deque[tuple[int, Write]] = deque()
        self._pending: deque[Future[None]] = deque()
        self._failed = False

    def submit(self, epoch: int, write: Write) -> None:
        """Let `write` run after those before; once synced, everything up to `epoch` is durable."""
        self._queue.append((epoch, write))
        self._pending.append(self._thread.submit(self._drain))
        while len(self._pending) > _IN_FLIGHT:
            self._pending.popleft().result()

    def flush(self) -> None:
        """Wait until all is durable; raises what went wrong."""
        while self._pending:
            self._pending.popleft().result()

    def abandon(self, durable_epoch: int) -> None:
        """Let writes under way end, well or badly, and start over."""
        wait(self._pending)
        self._pending.clear()
        self._queue.clear()
        self._failed = False
        self.durable_epoch = durable_epoch

    def close(self) -> None:
        self.flush()
        self._thread.shutdown()

    def _drain(self) -> None:
        """Write what waits. After a failed write nothing more: behind a gap it could not be read."""
        if self._queue and self._failed:
            raise LogError("an earlier commit could not be written; recover from the log")
        written = self.durable_epoch
        try:
            while self._queue:
                epoch, write = self._queue.popleft()
                self._failed = True
                write()
                self._failed = False
                written = max(written, epoch)
        finally:
            if written > self.durable_epoch:
                self._sync()
                self.durable_epoch = written
