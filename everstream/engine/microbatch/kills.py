"""Injected kills: which tasks of an epoch die, and where.

Each shard reaches each point once an epoch, so the driver knows the counts. It sends the kills
along with the order of an epoch; the first attempt at the task dies, the second one is spared.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.fault_points import Point
from everstream.core.ids import ShardId
from everstream.core.plan import Plan
from everstream.engine.faults.injection import Injector
from everstream.engine.faults.kills import Kill
from everstream.engine.microbatch.orders import ShardReport
from everstream.engine.reporting.listener import Listener
from everstream.errors import UserError

_OF_THE_DRIVER = (Point.IN_COMMIT, Point.AFTER_COMMIT)


@dataclass(frozen=True)
class Death:
    """The first attempt at this shard dies when it reaches this point."""

    shard: ShardId
    at: Point
    records: int = 0
    """Only after it has processed this many records."""


class KillPlan:
    """The pending kills that a user requested."""

    def __init__(self, kills: Sequence[Kill], plan: Plan, listener: Listener) -> None:
        for kill in kills:
            if kill.at in _OF_THE_DRIVER and not kill.of_driver(plan):
                raise UserError(
                    f'--kill {kill.operator}@{kill.at.value}: with engine="microbatch" the driver '
                    f"commits, so there is no such point in a task. Use driver@{kill.at.value}."
                )
        self._injector = Injector(kills, plan, listener)
        self._plan = plan
        self._epochs = 0
        self._planned: dict[int, Death] = {}
        """The kills of the current epoch, by their number."""
        self.killed: set[ShardId] = set()
        """The shards whose process was killed in the last job."""

    def reached(self, point: Point) -> None:
        self._injector.reached(point)

    def awaits(self, point: Point) -> bool:
        """Whether a kill of the driver is pending for this point."""
        kills = self._injector.kills
        return any(kill.at is point and kill.of_driver(self._plan) for kill in kills)

    def for_epoch(
        self, running_s: float, newest: dict[ShardId, CheckpointRecord]
    ) -> tuple[Death, ...]:
        """The kills for the epoch that starts now, at this time after the start."""
        self._epochs += 1
        self._planned = {}
        due = {order.kill for _, order in self._injector.due(running_s)}
        for number, kill in self._injector.left():
            shard = kill.target(self._plan)
            if kill.after_records is not None:
                if _had(shard, newest) < kill.after_records:
                    self._planned[number] = Death(shard, Point.BEFORE_SNAPSHOT, kill.after_records)
            elif kill.at is not None and self._epochs >= kill.occurrence:
                self._planned[number] = Death(shard, kill.at)
            elif number in due:
                self._planned[number] = Death(shard, Point.BEFORE_SNAPSHOT)
        return tuple(self._planned.values())

    def settle(self, reports: Sequence[ShardReport]) -> None:
        """Shards that needed a second attempt have died; kills of the others stay pending."""
        self.killed = set()
        retried = {report.shard for report in reports if report.retry}
        for number, death in self._planned.items():
            if death.shard in retried:
                retried.remove(death.shard)
                self.killed.add(death.shard)
                self._injector.happening(number)


def _had(shard: ShardId, newest: dict[ShardId, CheckpointRecord]) -> int:
    record = newest.get(shard)
    return 0 if record is None else max(record.counts.get(shard.operator, (0, 0)))


def die() -> None:
    """Like `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)
