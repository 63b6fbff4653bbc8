"""Checks that an epoch's reports are complete: each shard once, both ends of each channel agree.

Spark may run a task twice, or again much later because its output was lost. If a second attempt
sent different records, receivers may have read the first while the manifest names the second. The
counts and checksums then differ, and the epoch is run again.
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
    """The reports do not match, through no fault of the pipeline: run the epoch again."""

    reason: str


Verdict: TypeAlias = Complete | Failed | Unreadable | Unsaved | Disagreement


def examine(layout: Layout, order: Order, reports: Sequence[ShardReport]) -> Verdict:
    """The verdict on an epoch. The first problem decides: the rest follow from it."""
    problems = [report.problem for report in reports if report.problem is not None]
    for kind in (Failed, Unreadable, Unsaved):
        for problem in problems:
            if isinstance(problem, kind):
                return problem
    wanted = [shard for shard in layout.plan.shards if not order.finished(shard)]
    seen = Counter(report.shard for report in reports)
    if seen != Counter(wanted):
        odd = [str(shard) for shard in {*seen, *wanted} if seen[shard] != 1]
        return Disagreement(f"there is not exactly one report of each of {', '.join(sorted(odd))}")
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
