"""What others ask a running driver for, from any thread; its own thread does it when it comes by."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from everstream.errors import EverstreamError, RunFailed

ENDED = "the run has ended: it can be asked for nothing any more"


class Requests:
    """Work that waits for the driver's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Callable[[], str], Future[str]]] = []
        self._ended = False

    def ask(self, work: Callable[[], str]) -> Future[str]:
        """What was done, in words, once it is."""
        asked: Future[str] = Future()
        with self._lock:
            if not self._ended:
                self._waiting.append((work, asked))
                return asked
        asked.set_exception(RunFailed(ENDED))
        return asked

    def fulfil(self) -> None:
        """Do what was asked for. On the driver's thread."""
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
