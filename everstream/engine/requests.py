"""Requests to a running driver, from any thread; the driver's thread performs them in its loop."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from everstream.errors import EverstreamError, RunFailed

ENDED = "the run has ended and accepts no more requests"


class Requests:
    """Work queued for the driver's thread."""

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
        """Perform the requests. On the driver's thread."""
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
