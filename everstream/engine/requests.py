"""Requests to a running driver, from any thread; the driver's thread performs them in its loop."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from everstream.errors import EverstreamError, RunFailed

ENDED = "the run has ended and accepts no more requests"


class Requests:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Callable[[], str], Future[str]]] = []
        self._ended = False

    def ask(self, work: Callable[[], str]) -> Future[str]:
        """Resolves, once the work is done, to a sentence about it."""
        asked: Future[str] = Future()
        with self._lock:
            if not self._ended:
                self._waiting.append((work, asked))
                return asked
        asked.set_exception(RunFailed(ENDED))
        return asked

    def fulfil(self) -> None:
        while self._waiting:
            with self._lock:
                work, asked = self._waiting.pop(0)
            try:
                asked.set_result(work())
            except EverstreamError as error:
                asked.set_exception(error)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            left, self._waiting = self._waiting, []
        for _, asked in left:
            asked.set_exception(RunFailed(ENDED))


class CheckpointRequests:
    """The callers that wait for a checkpoint.

    A request that arrives while a checkpoint is in progress waits for the next one, because the
    current one may not include the caller's work. So every request is answered by the second
    checkpoint at the latest, however many callers ask.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[Future[int]] = []
        self._waiting: list[Future[int]] = []
        self._ended: RunFailed | None = None

    def ask(self) -> Future[int]:
        """Resolves to the number of the first stable epoch that includes all work done so far."""
        asked: Future[int] = Future()
        with self._lock:
            if self._ended is None:
                self._new.append(asked)
                return asked
        asked.set_exception(self._ended)
        return asked

    @property
    def is_due(self) -> bool:
        """Whether there is a request and no checkpoint in progress to answer it."""
        return bool(self._new) and not self._waiting

    def begin(self) -> None:
        """A checkpoint starts now, for all requests made so far."""
        with self._lock:
            self._waiting, self._new = self._new, []

    def answer(self, epoch: int) -> None:
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            asked.set_result(epoch)

    def end(self, epoch: int | None) -> None:
        """No more checkpoints: the run has ended. epoch: includes all its work; None: none does."""
        with self._lock:
            self._ended = RunFailed("the run has ended and takes no more checkpoints")
            left = self._waiting + self._new
            self._waiting, self._new = [], []
        for asked in left:
            if epoch is not None:
                asked.set_result(epoch)
            else:
                asked.set_exception(RunFailed("the run ended before this checkpoint was taken"))
