"""Injected kills, from the driver's side: which are pending, which are due, which have happened."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everstream.core.fault_points import Point
from everstream.core.ids import ShardId, WorkerId
from everstream.core.plan import Plan
from everstream.engine.faults.kills import Kill
from everstream.engine.reporting.building import killing
from everstream.engine.reporting.listener import Listener


@dataclass(frozen=True)
class KillAfter:
    """Worker: kill yourself when this shard has processed this many records."""

    kill: int
    shard: ShardId
    records: int


@dataclass(frozen=True)
class KillAt:
    """Worker: kill yourself when this shard reaches this point for the given time."""

    kill: int
    shard: ShardId
    point: Point
    occurrence: int


@dataclass(frozen=True)
class KillNow:
    """Worker: kill yourself."""

    kill: int


class Injector:
    """Sends each kill to its worker, and performs the driver's kills itself."""

    def __init__(self, kills: Sequence[Kill], plan: Plan, listener: Listener) -> None:
        self.kills = list(kills)
        self.plan = plan
        self.listener = listener
        self._done: set[int] = set()
        self._asked: dict[int, WorkerId] = {}
        """Workers that were ordered to die and have not confirmed it."""
        self._times_at: Counter[Point] = Counter()

    def for_new_worker(self, worker: WorkerId) -> Iterator[KillAfter | KillAt]:
        # If its predecessor died of another cause, its kills pass to this worker.
        self._asked = {number: asked for number, asked in self._asked.items() if asked != worker}
        for number, kill in self.left():
            shard = kill.target(self.plan)
            if self.plan.worker_of[shard] != worker:
                continue
            if kill.after_records is not None:
                yield KillAfter(number, shard, kill.after_records)
            elif kill.at is not None:
                yield KillAt(number, shard, kill.at, kill.occurrence)

    def due(self, running_s: float) -> Iterator[tuple[WorkerId, KillNow]]:
        for kill in self.kills:
            if _is_due(kill, running_s) and kill.of_driver(self.plan):
                self._die(kill)
        for number, kill in self.left():
            if _is_due(kill, running_s) and number not in self._asked:
                yield self.plan.worker_of[kill.target(self.plan)], KillNow(number)

    def add(self, kill: Kill) -> None:
        self.kills.append(kill)

    def asked(self, worker: WorkerId, number: int) -> None:
        """The worker has received the order to die: do not send it again."""
        self._asked[number] = worker

    def happening(self, number: int) -> None:
        """A worker reports that it is about to die."""
        self._done.add(number)
        self.listener.on_event(killing(self.kills[number], self.plan))

    def reached(self, point: Point) -> None:
        """The run as a whole has reached a point."""
        self._times_at[point] += 1
        for kill in self.kills:
            here = kill.at is point and self._times_at[point] == kill.occurrence
            if here and kill.of_driver(self.plan):
                self._die(kill)

    def left(self) -> list[tuple[int, Kill]]:
        return [
            (number, kill)
            for number, kill in enumerate(self.kills)
            if number not in self._done and not kill.of_driver(self.plan) and self._has_target(kill)
        ]

    def _has_target(self, kill: Kill) -> bool:
        """There may be fewer shards now than when the kill was requested."""
        chain = self.plan.chains[self.plan.chain_of[kill.operator]]
        return kill.shard < chain.shards

    def _die(self, kill: Kill) -> None:
        self.listener.on_event(killing(kill, self.plan))
        os.kill(os.getpid(), signal.SIGKILL)


def _is_due(kill: Kill, running_s: float) -> bool:
    return kill.after_s is not None and running_s >= kill.after_s
