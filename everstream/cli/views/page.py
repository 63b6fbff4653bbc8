"""The page of `everstream run --ui`. The supervisor serves it, so it survives the death of a driver.

The view of the run is built here, from the events of the drivers and those that only the supervisor knows:
that a driver died, and how its successor recovered. For this reason the history is written here as well.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Self

from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.supervise import Supervisor
from everstream.cli.views.messages import (
    DriverFailed,
    DriverFinished,
    EventReported,
    Message,
    Opened,
)
from everstream.engine.reporting.building import RecoveryUpdates
from everstream.engine.reporting.listener import sent
from everstream.errors import EverstreamError
from everstream.events import Progressed, RunEnded, RunEvent
from everstream.observability.history.run_view import Live
from everstream.observability.history.writer import HistoryWriter
from everstream.observability.ui.views import Shown
from everstream.state.signing import StoreKey, blobs_at

ANSWER_WITHIN_S = 90.0


class Page:
    """The supervisor's view of a run, and the actions that it offers."""

    def __init__(
        self, supervisor: Supervisor, command: RunCommand, say: Callable[[str], None]
    ) -> None:
        self._supervisor = supervisor
        self._options = command.options
        self._say = say
        self._recoveries = RecoveryUpdates(uuid.uuid4().hex)
        self._history: HistoryWriter | None = None
        self._troubles: SimpleQueue[str] = SimpleQueue()
        self.live = Live()
        self.shown = Shown(self.live, self)
        self.shown.store_key = command.settings.get("store_key")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._history is not None:
            self._history.stop()

    def hear(self, message: Message) -> None:
        """Take a message that the supervisor's log has already received."""
        now_s, at = time.monotonic(), time.time()
        match message:
            case Opened(store=store):
                self.shown.store = store
                if self._options.history and self._history is None:
                    self._keep_history(store)
            case EventReported(event=event) if not isinstance(event, Progressed):
                self._take(event)
            case DriverFinished(result=result) if self.live.run_view.ended is None:
                self._take(sent(RunEnded(str(result["outcome"]))))
            case DriverFailed(text=text) if self.live.run_view.ended is None:
                self._take(sent(RunEnded("failed", text)))
            case _:
                pass
        reports = self._supervisor.log.driver_recoveries
        for recovery in self._recoveries.changed(reports, now_s, at):
            self._take(recovery)
        with suppress(Empty):
            self._say(self._troubles.get_nowait())

    def _take(self, event: RunEvent) -> None:
        self.live.take(event)
        if self._history is not None:
            self._history.take(event)

    def _keep_history(self, store: str) -> None:
        with suppress(EverstreamError):  # the driver hits the same error and reports it better
            blobs = blobs_at(store, StoreKey.given(self._options.store_key))
            self._history = HistoryWriter(blobs, self._troubles.put)
            self._history.start()

    def act(self, action: str, wishes: Mapping[str, Any]) -> str:
        if action == "stop":
            self._supervisor.stop()
            return "stopping with a checkpoint"
        return self._supervisor.ask(action, wishes).result(ANSWER_WITHIN_S)


@contextmanager
def served(page: Page, ui: bool | str) -> Iterator[list[str]]:
    """Serve the page if it was requested; yields the lines to print."""
    if ui is False:
        yield []
        return
    from everstream.observability.ui.serving import Serving

    with Serving(page.shown, None if ui is True else ui) as serving:
        lines = [f"page: {serving.link}"]
        if serving.warning is not None:
            lines.append(f"! {serving.warning}")
        yield lines
