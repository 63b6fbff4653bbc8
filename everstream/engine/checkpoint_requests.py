"""Checkpoints that somebody asks for while a run goes on, from any thread, and waits for."""

import threading
from concurrent.futures import Future

from everstream.errors import RunFailed


class CheckpointRequests:
    """Who waits for a checkpoint.

    Those who ask while one is on its way wait for the next: it may have left out what they have in
    mind. So everybody is answered by the second at the latest, however many ask.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[Future[int]] = []
        self._waiting: list[Future[int]] = []
        self._ended: RunFailed | None = None

    def ask(self) -> Future[int]:
        """The number of the epoch that has in it all that was done up to now, once it is stable."""
        asked: Future[int] = Future()
        with self._lock:
            if self._ended is None:
                self._new.append(asked)
                return asked
        asked.set_exception(self._ended)
        return asked

    @property
    def is_due(self) -> bool:
        """Somebody has asked, and no checkpoint is on its way to answer."""
        return bool(self._new) and not self._waiting

    def begin(self) -> None:
        """A checkpoint is asked for now, on behalf of all who have asked so far."""
        with self._lock:
            self._waiting, self._new = self._new, []

    def answer(self, epoch: int) -> None:
        """The checkpoint that was begun is stable."""
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            asked.set_result(epoch)

    def end(self, epoch: int | None) -> None:
        """No more checkpoints: the run has ended, with all its work in this one, or not (None)."""
        with self._lock:
            self._ended = RunFailed("the run has ended, and takes no checkpoints any more")
            left = self._waiting + self._new
            self._waiting, self._new = [], []
        for asked in left:
            if epoch is not None:
                asked.set_result(epoch)
            else:
                asked.set_exception(RunFailed("the run ended before this checkpoint was taken"))
