"""Draws the kills of an audit: which process, and when.

Most happen at a named point of a checkpoint's life, where mistakes hide; the others after some
records or some time. The same seed draws the same kills.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstream.core.fault_points import Point
from everstream.core.plan import Plan
from everstream.engine.faults.kills import DRIVER
from everstream.pipeline.checkpointing import EngineName
from everstream.pipeline.graph import Kind

A_FEW = 5
"""Kills in one run: after this many recoveries records are still in flight for the next one."""
SECONDS_PER_KILL = 1.0
AT_A_POINT, AFTER_RECORDS = 0.6, 0.85
"""Up to which draw from [0, 1) a kill is at a point or after records; beyond, after a time."""
DRIVER_SHARE = 0.25
TRIES = 1000

ANYWHERE = (*(Point.BEFORE_SNAPSHOT, Point.IN_SNAPSHOT, Point.AFTER_SNAPSHOT), Point.IN_RESTORE)
AT_SINKS = (*ANYWHERE, Point.AFTER_PREPARE, Point.IN_COMMIT, Point.AFTER_COMMIT)
AT_DRIVER = tuple(point for point in Point if point is not Point.AFTER_COMMIT)
"""A driver commits nothing itself."""
LATEST_OCCURRENCE = 3


@dataclass(frozen=True)
class Target:
    """A shard whose process can be killed, or the driver."""

    name: str
    points: tuple[Point, ...]
    records: int = 0
    """About how many records the shard takes in an undisturbed run; 0 if that means nothing."""


def targets_of(
    plan: Plan, counts: Mapping[str, Sequence[int]], drivers: bool, engine: EngineName = "tasks"
) -> list[Target]:
    """Every shard of the plan. `counts`: operator -> records in and out, undisturbed."""
    at_sinks = set(plan.sink_shards())
    targets = []
    for shard in plan.shards:
        records_in, records_out = counts.get(shard.operator, (0, 0))
        is_source = plan.graph.nodes[shard.operator].kind is Kind.SOURCE
        records = (records_out if is_source else records_in) // plan.chains[shard.operator].shards
        points: tuple[Point, ...] = AT_SINKS if shard in at_sinks else ANYWHERE
        if engine == "microbatch":  # whose driver commits
            points = tuple(p for p in points if p not in (Point.IN_COMMIT, Point.AFTER_COMMIT))
        targets.append(Target(str(shard), points, records))
    if drivers and DRIVER not in plan.chain_of:  # an operator of that name takes its kills
        targets.append(Target(DRIVER, AT_DRIVER))
    return targets


class KillSchedule:
    """Draws rounds of kills; each round is for one run."""

    def __init__(self, targets: Sequence[Target], seed: int) -> None:
        self._workers = [target for target in targets if target.name != DRIVER]
        self._drivers = [target for target in targets if target.name == DRIVER]
        self._random = random.Random(seed)

    def rounds(self, kills: int) -> list[list[str]]:
        """This many kills, a few for each run."""
        sizes = [min(A_FEW, kills - start) for start in range(0, kills, A_FEW)]
        return [self.round(size) for size in sizes]

    def round(self, size: int) -> list[str]:
        """Kills that are all different, in the words of --kill."""
        drawn: list[str] = []
        for _ in range(TRIES):
            if len(drawn) == size:
                break
            kill = self._draw(lasts_s(size))
            if kill not in drawn:
                drawn.append(kill)
        return drawn

    def _draw(self, within_s: float) -> str:
        choose = self._random
        of_driver = bool(self._drivers) and choose.random() < DRIVER_SHARE
        target = choose.choice(self._drivers if of_driver else self._workers)
        kind = choose.random()
        if kind < AT_A_POINT:
            point = choose.choice(target.points)
            # A process restores again only if another one fails: do not count on it.
            latest = 1 if point is Point.IN_RESTORE else LATEST_OCCURRENCE
            return f"{target.name}@{point.value}#{choose.randint(1, latest)}"
        if kind < AFTER_RECORDS and target.records:
            return f"{target.name}@{choose.randint(1, target.records)}"
        return f"{target.name}@{choose.randint(50, int(within_s * 1000))}ms"


def lasts_s(kills: int) -> float:
    """The time over which the records of a run with this many kills are spread."""
    return 1.0 + SECONDS_PER_KILL * kills
