"""Whether the reports of an epoch make one: every shard once, and both ends of each channel agree.

Spark may run a task twice, or again much later because its output was lost. If a second attempt
has sent something else, those behind may have seen the one and the manifest would name the other;
then their counts and checksums differ, and the epoch is run again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import ShardId
from everstream.core.shard import round_too_late
from everstream.engine.microbatch.cycles import handed_on
from everstream.engine.microbatch.layout import Layout
from everstream.engine.microbatch.orders import (
    Failed,
    Incomplete,
    Order,
    ShardReport,
    Unreadable,
    Unsaved,
)
from everstream.engine.microbatch.rows import NOTHING


@dataclass(frozen=True)
class Complete:
    """An epoch that can become stable."""

    records: dict[ShardId, CheckpointRecord]
    reports: tuple[ShardReport, ...]


@dataclass(frozen=True)
class Disagreement:
    """It is nobody's fault, and has to be run again."""

    reason: str


Verdict: TypeAlias = Complete | Failed | Unreadable | Unsaved | Disagreement


def examine(layout: Layout, order: Order, reports: Sequence[ShardReport]) -> Verdict:
    """What an epoch has come to. What went wrong first is what counts: the rest follows from it."""
    problems = [report.problem for report in reports if report.problem is not None]
    for kind in (Failed, Unreadable, Unsaved):
        for problem in problems:
            if isinstance(problem, kind):
                return problem
    wanted = [shard for shard in layout.plan.shards if not order.finished(shard)]
    seen = Counter(report.shard for report in reports)
    if seen != Counter(wanted):
        odd = [str(shard) for shard in {*seen, *wanted} if seen[shard] != 1]
        return Disagreement(f"there is not one report each of {', '.join(sorted(odd))}")
    for problem in problems:
        assert isinstance(problem, Incomplete)
        return Disagreement(f"input is missing: {problem.missing}")
    differing = _differing(layout, reports)
    if differing:
        return Disagreement(f"sender and receiver do not agree on {', '.join(differing)}")
    records = {
        shard: record
        for shard in layout.plan.shards
        if order.finished(shard)
        for record in order.records[shard]
        if record.shard == shard
    }
    for report in reports:
        if report.record is None:
            return Disagreement(f"{report.shard} has taken no checkpoint")
        records[report.shard] = report.record
    for report in reports:
        for shard in report.carried_to:
            if records[shard].final:
                return Failed(round_too_late(shard))
    return Complete(handed_on(records, reports), tuple(reports))


def _differing(layout: Layout, reports: Sequence[ShardReport]) -> list[str]:
    sent = {position: d for report in reports for position, d in report.sent.items()}
    received = {position: d for report in reports for position, d in report.received.items()}
    return [
        str(layout.plan.channels[position])
        for position in sorted({*sent, *received})
        if sent.get(position, NOTHING) != received.get(position, NOTHING)
    ]
