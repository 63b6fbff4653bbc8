"""The threads of a worker that write checkpoints and commit output while the shards work.

Jobs of one kind keep their order. Outcomes are collected for the main thread, which is woken up
through a pipe in its poll. A broken thread is such an outcome, too: the main thread raises its
error, and the worker ends.
"""

import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from everstream.core.fault_points import Point
from everstream.core.ids import ShardId
from everstream.errors import EnvironmentFault, InternalError
from everstream.runtime.engine_api import CommitJob, Upload
from everstream.runtime.message_log import Segment
from everstream.state.store import CheckpointStore

UPLOAD_NICENESS = 5
"""Added to the niceness of the upload thread: on a busy machine the shards go first."""


class Background:
    """One thread for uploads, one for commits."""

    def __init__(self, store: CheckpointStore, reached: Callable[[ShardId, Point], None]) -> None:
        self.store = store
        self.reached = reached
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)
        self._done: deque[Callable[[], None]] = deque()
        self._closed = False
        self._queues: list[SimpleQueue[Any]] = []
        self._uploads = self._start("everstream-upload", UPLOAD_NICENESS)
        self._commits = self._start("everstream-commit")

    def upload(
        self,
        job: Upload,
        uploaded: Callable[[Upload, Any, float], None],
        failed: Callable[[Upload, BaseException], None],
    ) -> None:
        def work() -> Callable[[], None]:
            began_s = time.monotonic()
            ref = job.perform(self.store.put, self.reached)
            return partial(uploaded, job, ref, time.monotonic() - began_s)

        self._uploads.put(partial(self._perform, work, partial(failed, job)))

    def save_segment(self, segment: Segment) -> None:
        """Write a part of a message log; if that fails, the next checkpoint retries it."""

        def work() -> None:
            with suppress(EnvironmentFault):
                segment.save(self.store.put)

        self._uploads.put(work)

    def commit(
        self,
        job: CommitJob,
        done: Callable[[CommitJob], None],
        failed: Callable[[CommitJob, BaseException], None],
    ) -> None:
        def work() -> Callable[[], None]:
            job.perform(self.reached)
            return partial(done, job)

        if job.transactions:
            self._commits.put(partial(self._perform, work, partial(failed, job)))
        else:
            done(job)

    def _perform(
        self, work: Callable[[], Callable[[], None]], failed: Callable[[BaseException], None]
    ) -> None:
        try:
            self.post(work())
        except BaseException as error:  # any error must reach the main thread
            self.post(partial(failed, error))

    def deliver_outcomes(self) -> None:
        """Call back the outcomes since the last call; on the main thread."""
        with suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)
        while self._done:
            self._done.popleft()()

    def close(self) -> None:
        for queue in self._queues:
            queue.put(None)
        self._closed = True
        os.close(self._write_fd)
        os.close(self.wake_fd)

    def post(self, callback: Callable[[], None]) -> None:
        self._done.append(callback)
        self.wake_up()

    def wake_up(self) -> None:
        """End the sleep of the main thread; any thread may call this."""
        if not self._closed:
            with suppress(OSError):  # awake already, or closing
                os.write(self._write_fd, b"!")

    def _start(self, name: str, niceness: int = 0) -> "SimpleQueue[Any]":
        queue: SimpleQueue[Any] = SimpleQueue()

        def loop() -> None:
            if niceness and sys.platform == "linux":  # elsewhere it would affect the whole process
                thread = threading.get_native_id()
                before = os.getpriority(os.PRIO_PROCESS, thread)
                os.setpriority(os.PRIO_PROCESS, thread, before + niceness)
            while (work := queue.get()) is not None:
                work()

        def watched() -> None:
            try:
                loop()
            except BaseException:  # the main thread would wait forever
                broken = InternalError(f"the thread {name} broke: {traceback.format_exc()}")
                self.post(partial(_raise, broken))

        threading.Thread(target=watched, name=name, daemon=True).start()
        self._queues.append(queue)
        return queue


def _raise(error: Exception) -> None:
    raise error
