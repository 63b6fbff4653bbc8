"""The page of `everstream run --ui`: served by the monitor, so that it lives through a driver's death.

The run_view is here, fed with what the drivers tell and with what only the monitor knows: that one of
them has died, and how its successor came back. So the history in the store is written here as well.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Self

from everstream.cli.events import DriverLost, Event, Failed, Finished, Opened, Recorded
from everstream.cli.run_command import RunCommand
from everstream.cli.supervise import Supervisor
from everstream.errors import EverstreamError
from everstream.observability.history.entries import Entry, driver_lost_entry, end_entry, note_entry
from everstream.observability.history.failures import Failures
from everstream.observability.history.live import Live
from everstream.observability.history.writer import HistoryWriter
from everstream.observability.ui.views import Shown
from everstream.state.signing import StoreKey, blobs_at

ANSWER_WITHIN_S = 90.0


class Page:
    """What the monitor shows of a run, and what can be asked of it."""

    def __init__(
        self, supervisor: Supervisor, command: RunCommand, say: Callable[[str], None]
    ) -> None:
        self._supervisor = supervisor
        self._options = command.options
        self._say = say
        self._failures = Failures(uuid.uuid4().hex)
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

    def hear(self, event: Event) -> None:
        """An event, after the supervisor's story has heard it."""
        now_s, at = time.monotonic(), time.time()
        match event:
            case Opened(store=store):
                self.shown.is_at(store)
                if self._options.history and self._history is None:
                    self._keep_history(store)
            case Recorded(entry=entry):
                self._take(entry)
            case DriverLost(how=how):
                self._take(driver_lost_entry(how, at))
                self._take(note_entry(f"the driver died ({how})", True, at))
            case Finished(result=result) if self.live.run_view.ended is None:
                self._take(end_entry(str(result["outcome"]), None, at))
            case Failed(text=text) if self.live.run_view.ended is None:
                self._take(end_entry("failed", text, at))
            case _:
                pass
        reports = self._supervisor.log.driver_recoveries
        for entry in self._failures.changed(reports, now_s, at):
            self._take(entry)
        with suppress(Empty):
            self._say(self._troubles.get_nowait())

    def _take(self, entry: Entry) -> None:
        self.live.take(entry)
        if self._history is not None:
            self._history.take(entry)

    def _keep_history(self, store: str) -> None:
        with suppress(EverstreamError):  # the driver finds the same, and says it better
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
    """Serve the page, unless nobody wants it; what to tell the user."""
    if ui is False:
        yield []
        return
    from everstream.observability.ui.serving import Serving

    with Serving(page.shown, None if ui is True else ui) as serving:
        said = [f"page: {serving.link}"]
        if serving.warning is not None:
            said.append(f"! {serving.warning}")
        yield said
