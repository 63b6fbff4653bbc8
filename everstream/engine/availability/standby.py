"""A standby: waits, with its engine started, until the driver of a store fails or falls silent.

It asks the driver for heartbeats through the store and times them by its own clock. When they stop,
it takes the lease, which fences the other driver. Of several standbys, one gets the lease.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from everstream.core.failure_detector import FailureDetector, StandbyDecision
from everstream.core.orders import Outcome
from everstream.core.plan import Plan
from everstream.engine.availability.heartbeat import FORGET_AFTER_S, LOOK_EVERY_S
from everstream.engine.reporting.listener import Listener
from everstream.engine.settings.options import RunConfig
from everstream.engine.store_session import owner_of, predecessor
from everstream.errors import LeaseLost, StoreError
from everstream.events import Note, StoreTaken
from everstream.state.heartbeat import WAITING, Heartbeat, Waiting, read_heartbeat
from everstream.state.store import CheckpointStore, Lease

BEATS = 5
"""The driver is silent when this many heartbeats are missing."""
LOOKS = 10
REMIND_EVERY_S = FORGET_AFTER_S / 3


@dataclass
class StandingBy:
    store: CheckpointStore
    owner: str
    command: str
    silence_s: float
    listener: Listener
    is_stopped: Callable[[], bool]

    def __post_init__(self) -> None:
        self._detector = FailureDetector(self.command, self.silence_s, LOOK_EVERY_S)
        self._waiting = Waiting(self.owner, self.silence_s / BEATS)
        self._unheard = -1
        """The newest lease, if its holder had sent no heartbeat when it was first seen."""
        self._watched = -1
        """The lease of the last driver that was notified of this standby."""
        self._remind_s = 0.0
        self._said = ""

    def wait(self) -> Lease | Outcome:
        """The lease, when this standby takes over; or how the run ended that it waited for."""
        while not self.is_stopped():
            try:
                found = self._look(time.monotonic())
            except StoreError as error:
                self._say(f"standing by; the store does not answer: {error.message}")
                found = None
            if found is not None:
                with suppress(StoreError):
                    self.store.blobs.delete(WAITING)
                return found
            time.sleep(self.silence_s / LOOKS)
        return Outcome.STOPPED

    def _look(self, now_s: float) -> Lease | Outcome | None:
        heartbeat = read_heartbeat(self.store.blobs)
        lease = heartbeat.lease if heartbeat is not None else 0
        if now_s >= self._remind_s or lease != self._watched:  # a new driver does not know of us
            self._remind_s, self._watched = now_s + REMIND_EVERY_S, lease
            self._waiting = replace(self._waiting, beat=self._waiting.beat + 1)
            self._waiting.write(self.store.blobs)
        match self._detector.saw(heartbeat, now_s):
            case StandbyDecision.WAIT:
                owner = f"'{heartbeat.owner}'" if heartbeat is not None else "another run"
                self._say(f"standing by: {owner} has the store")
                return None
            case StandbyDecision.FINISHED:
                self._tell("the run that this standby waited for has finished")
                return Outcome.FINISHED
            case StandbyDecision.STOPPED:
                self._tell(
                    "the run that this standby waited for was stopped on purpose, with a checkpoint: "
                    "the standby ends as well"
                )
                return Outcome.STOPPED
            case StandbyDecision.TAKE_OVER:
                return self._take_over(heartbeat.lease if heartbeat is not None else None, now_s)

    def _take_over(self, lease: int | None, now_s: float) -> Lease | None:
        """From the holder of this lease, or of a newer one that has sent no heartbeat."""
        holder = self.store.survey().holder
        newest = holder.number if holder is not None else 0
        if lease is None:
            lease = newest
        if newest == self._unheard:
            lease = max(lease, newest)
        try:
            taken = self.store.acquire_lease(self.owner, after=lease)
        except LeaseLost as error:  # another standby was faster and will send heartbeats
            self._unheard = newest
            self._detector.overtaken(now_s)
            self._say(f"standing by: {error.message.partition('. ')[0]}")
            return None
        with suppress(StoreError):  # the run writes it again
            Heartbeat(taken.number, self.command, self.owner).write(self.store.blobs)
        if holder is not None:
            self.listener.on_event(StoreTaken(holder.owner, standby=True))
        return taken

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._tell(text)

    def _tell(self, text: str) -> None:
        self.listener.on_event(Note("standby", text))


def stood_by(
    config: RunConfig,
    plan: Plan,
    url: str,
    is_stopped: Callable[[], bool],
    warm: Callable[[RunConfig, Plan], None],
) -> Lease | Outcome | None:
    """Wait to take over, if this run is a standby; returns its lease, or how the other run ended.

    warm: starts beforehand what the run will need.
    """
    turn, store = config.turn, CheckpointStore.at(url, config.store_key)
    if turn.silence_s is None:
        predecessor(store, config)
        return None
    warm(replace(config, listener=Listener()), plan)
    owner, listener = owner_of(plan.graph.name), config.listener
    return StandingBy(store, owner, turn.command, turn.silence_s, listener, is_stopped).wait()
