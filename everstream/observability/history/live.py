"""A run_view that one thread writes and others read: a server, a handle, a screen."""

import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TypeVar

from everstream.errors import InternalError
from everstream.observability.history.entries import Entry
from everstream.observability.history.run_view import RunView, View

T = TypeVar("T")


class Live:
    """What is known of a run at any moment, from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.run_view = RunView()
        self._clock = clock
        self._lock = threading.Lock()
        self._broken: InternalError | None = None

    def take(self, entry: Entry) -> None:
        """Never fails: what is shown must not end what runs. Whoever looks then is told."""
        with self._lock:
            if self._broken is not None:
                return
            try:
                self.run_view.take(entry)
            except Exception:
                self._broken = InternalError(f"the run_view broke: {traceback.format_exc()}")

    def take_all(self, entries: Iterable[Entry]) -> int:
        """How many there were."""
        count = 0
        for entry in entries:
            self.take(entry)
            count += 1
        return count

    def view(self) -> View:
        return self.reading(lambda run_view: run_view.view(self._clock()))

    def reading(self, read: Callable[[RunView], T]) -> T:
        """What somebody reads off the run_view while nobody writes."""
        with self._lock:
            if self._broken is not None:
                raise self._broken
            return read(self.run_view)

    @property
    def news(self) -> tuple[int, int]:
        """How many entries there were, and how many of them urgent."""
        return self.run_view.taken, self.run_view.urgent
