"""Virtual time, and the events of a simulated run in it.

Events are passed to watchers, recorded in the run's history, and used as triggers for faults.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from everstream.core.orders import Outcome
from everstream.errors import EverstreamError
from everstream.events import RunEvent, sentence
from everstream.simulation.checks import Liveness
from everstream.simulation.faults import Moment


@dataclass
class History:
    seed: int
    shape: str
    outcome: Outcome | None = None
    lost: int = 0
    duplicated: int = 0
    misordered: bool = False
    virtual_s: float = 0.0
    steps: int = 0
    epochs: int = 0
    recoveries: int = 0
    refused: bool = False
    """It failed because data that it needs to resume is damaged beyond repair, which is true."""
    forced: int = 0
    """Checkpoints that a protocol demanded before a delivery."""
    lost_frames: int = 0
    """Frames the run itself knows to be lost, because logs died with their workers."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    """What the drivers reported."""
    violations: list[str] = field(default_factory=list)
    """Violations of safety, of liveness, or of the core's invariants."""

    @property
    def right(self) -> bool:
        """Finished, with exactly the output of the sequential program, and never unsafe.

        If every checkpoint is damaged beyond repair, it is correct to stop.
        """
        return (self.outcome is Outcome.FINISHED or self.refused) and not self.violations


class Scheduler:
    """Runs callbacks in the order of their virtual times."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.steps = 0
        self.due = 0
        """Callbacks in the queue, without those that only wait for time to pass."""
        self._queue: list[tuple[float, int, bool, Callable[[], None]]] = []
        self._ties = itertools.count()

    def after(self, delay_s: float, callback: Callable[[], None], *, waits: bool = False) -> None:
        """waits: it is a tick or an alarm, and nothing is under way that it completes."""
        self._put(self.now_s + delay_s, waits, callback)

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        self._put(max(time_s, self.now_s), False, callback)

    def _put(self, time_s: float, waits: bool, callback: Callable[[], None]) -> None:
        self.due += not waits
        heapq.heappush(self._queue, (time_s, next(self._ties), waits, callback))

    def step(self) -> bool:
        """Run the next callback; False if there is none."""
        if not self._queue:
            return False
        self.now_s, _, waits, callback = heapq.heappop(self._queue)
        self.due -= not waits
        self.steps += 1
        callback()
        return True

    def jitter_s(self, typical_s: float) -> float:
        """A delay around this size; now and then a much longer one."""
        if self.random.random() < 0.02:
            typical_s *= 20
        return self.random.expovariate(1 / typical_s)


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
