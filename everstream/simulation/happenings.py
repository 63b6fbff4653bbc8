"""The events of a simulated run: passed to watchers, recorded, and used as triggers for faults."""

from collections import Counter
from collections.abc import Callable

from everstream.core.orders import Outcome
from everstream.errors import EverstreamError
from everstream.events import RunEvent, sentence
from everstream.simulation.checks import Liveness
from everstream.simulation.faults.injected import Moment
from everstream.simulation.history import History
from everstream.simulation.scheduler import Scheduler


class Happenings:
    """Virtual time, and a record of the events in it."""

    def __init__(self, scheduler: Scheduler, history: History) -> None:
        self.scheduler = scheduler
        self.history = history
        self.liveness = Liveness()
        self.outcome: Outcome | None = None
        self.error: EverstreamError | None = None
        """What the last run failed with."""
        self.watchers: list[Callable[[str], None]] = []
        """Called with every event, as text."""
        self.ambushes: dict[tuple[Moment, int], Callable[[], None]] = {}
        """Actions to run right after the first, second, ... such moment."""
        self._moments: Counter[Moment] = Counter()

    def event(self, text: str) -> None:
        for watch in self.watchers:
            watch(text)

    def note(self, text: str) -> None:
        self.history.notes.append(f"{self.scheduler.now_s:8.4f} {text}")

    def tell(self, event: RunEvent) -> None:
        """A driver reports something."""
        self.history.events.append(event)
        text = sentence(event)
        if text is not None:
            self.event(text)
            self.note(text)

    def fault(self, text: str) -> None:
        """A fault happens: the time in which the run must end starts again."""
        self.event(text)
        self.liveness.fault(self.scheduler.steps)
        self.history.faults.append(f"{self.scheduler.now_s:8.4f} {text}")

    def moment(self, moment: Moment) -> None:
        self._moments[moment] += 1
        ambush = self.ambushes.get((moment, self._moments[moment]))
        if ambush is not None:
            self.after(0.005, ambush)

    def after(self, typical_s: float, action: Callable[[], None]) -> None:
        """Run it after about this much time."""
        self.scheduler.after(self.scheduler.jitter_s(typical_s), action)

    def when(self, text: str, action: Callable[[], None]) -> None:
        """Run it once, right after the first event whose text starts like this."""

        def watch(happened: str) -> None:
            if happened.startswith(text) and watch in self.watchers:
                self.watchers.remove(watch)
                self.scheduler.after(0.0, action)

        self.watchers.append(watch)
