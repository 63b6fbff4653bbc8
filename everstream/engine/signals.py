"""Stopping a run: on request, and on Ctrl-C and SIGTERM."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stoppable:
    """A run that can be asked to stop."""

    _stop_reason: str | None = None

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested."""
        return self._stop_reason is not None

    def request_stop(self, reason: str) -> None:
        """Stop with a checkpoint. Safe from a signal handler or another thread."""
        self._stop_reason = reason


@contextmanager
def stopping_on_signals(driver: Stoppable) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop with a checkpoint; a second Ctrl-C stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        if driver.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        driver.request_stop("Ctrl-C" if number == signal.SIGINT else "SIGTERM")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
