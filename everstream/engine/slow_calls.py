"""Reports calls that have not returned yet: for the few that the driver makes on its own thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from everstream.core.coordinators.stall_warning import StallWarning
from everstream.engine.reporting.listener import Listener
from everstream.events import Stalled

LOOK_EVERY_S = 0.25


@contextmanager
def said_when_slow(listener: Listener, what: str, limit_s: float) -> Iterator[None]:
    """While the body runs: report to the listener when it exceeds the limit, and again later."""
    over = threading.Event()

    def watch() -> None:
        patience = StallWarning(limit_s)
        passed_s = 0.0
        patience.due(what, passed_s)
        while not over.wait(min(LOOK_EVERY_S, limit_s)):
            passed_s += min(LOOK_EVERY_S, limit_s)
            waited_s = patience.due(what, passed_s)
            if waited_s is not None:
                listener.on_event(Stalled(what, waited_s))

    watcher = threading.Thread(target=watch, name="everstream-patience", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
