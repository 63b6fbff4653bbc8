"""Recovery reports: what each failure cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstream.core.checkpointing.newest import Newest
from everstream.core.ids import NO_EPOCH, Epoch


@dataclass
class RecoveryReport:
    """The timeline of one failure. Times are on the driver's clock, in seconds."""

    what: str
    """Which worker or shard failed, and how it was noticed."""
    shards: tuple[str, ...]
    injected: bool
    detected_s: float
    failed_s: float | None = None
    """When it was killed, if we did it ourselves; otherwise unknown."""
    restarted_s: float | None = None
    restored_s: float | None = None
    replayed_s: float | None = None
    """When the sources had emitted again everything that they had emitted before the failure."""
    caught_up_s: float | None = None
    from_epoch: Epoch = NO_EPOCH
    records_replayed: int = 0
    duplicates_suppressed: int = 0
    """Records that had reached a sink before the failure, were replayed, and are shown once."""
    records_read: int = 0
    """Records the sources had emitted when the failure was detected."""
    goal: dict[str, int] = field(default_factory=dict)
    """Operator -> records it had received when the failure was detected."""
    went_back: tuple[str, ...] = ()
    """The shards that rolled back to a checkpoint; the others kept their state and continued."""
    rollback_s: float = 0.0
    """The age of the oldest checkpoint that one of them rolled back to."""
    checkpoints_back: int = 0
    """The most checkpoints that one of them gave up."""

    @property
    def start_s(self) -> float:
        return self.failed_s if self.failed_s is not None else self.detected_s

    def milliseconds(self) -> dict[str, float | None]:
        """The timeline in ms after the kill (or after detection, if the kill was not ours)."""
        steps = {
            "detected_ms": self.detected_s,
            "restarted_ms": self.restarted_s,
            "restored_ms": self.restored_s,
            "replayed_ms": self.replayed_s,
            "caught_up_ms": self.caught_up_s,
        }
        return {
            name: None if at_s is None else round((at_s - self.start_s) * 1000, 1)
            for name, at_s in steps.items()
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "shards": list(self.shards),
            "injected": self.injected,
            "from_epoch": self.from_epoch,
            "records_replayed": self.records_replayed,
            "went_back": list(self.went_back),
            "rollback_s": round(self.rollback_s, 3),
            "checkpoints_back": self.checkpoints_back,
            "duplicates_suppressed": self.duplicates_suppressed,
            **self.milliseconds(),
        }


class RecoveryBook:
    """Keeps the reports of a run, and closes them as the run catches up."""

    def __init__(self) -> None:
        self.reports: Newest[RecoveryReport] = Newest()

    def open(self, report: RecoveryReport) -> None:
        self.reports.append(report)

    def restarted(self, shards: tuple[str, ...], now_s: float) -> None:
        for report in self.unfinished:
            if report.restarted_s is None and set(report.shards) & set(shards):
                report.restarted_s = now_s

    def going_back(
        self, shards: Sequence[str], rollback_s: float, checkpoints_back: int, replayed: int = 0
    ) -> None:
        """It is decided which shards roll back and how far, and so how many records they replay."""
        for report in self.unfinished:
            report.records_replayed = max(report.records_replayed, replayed)
            report.went_back = tuple(sorted({*report.went_back, *shards}))
            report.rollback_s = max(report.rollback_s, rollback_s)
            report.checkpoints_back = max(report.checkpoints_back, checkpoints_back)

    def resumed(
        self, epoch: Epoch, records_read: int, now_s: float, shown: Mapping[str, int] | None = None
    ) -> None:
        """Every shard is back at the checkpoint, where `records_read` records had been read.

        shown: sinks that commit nothing twice -> how many records they had received by then.
        """
        for report in self.unfinished:
            report.restored_s = now_s
            report.replayed_s = None
            report.restarted_s = report.restarted_s or now_s
            report.from_epoch = epoch
            read_again = report.records_read - records_read
            report.records_replayed = max(report.records_replayed, read_again)
            report.duplicates_suppressed = sum(
                max(0, report.goal.get(sink, 0) - taken) for sink, taken in (shown or {}).items()
            )

    def progressed(self, totals: Mapping[str, int], records_read: int, now_s: float) -> None:
        for report in self.unfinished:
            if report.restored_s is None:
                continue
            if report.replayed_s is None and records_read >= report.records_read:
                report.replayed_s = now_s
            if all(totals.get(name, 0) >= goal for name, goal in report.goal.items()):
                report.replayed_s = report.replayed_s or now_s
                report.caught_up_s = now_s

    def ended(self, now_s: float) -> None:
        """The run is over: everything restored has caught up by now."""
        for report in self.unfinished:
            if report.restored_s is not None:
                report.replayed_s = report.replayed_s or now_s
                report.caught_up_s = now_s

    def goal(self) -> dict[str, int]:
        """The furthest progress before any failure that the run has not caught up with."""
        goals: dict[str, int] = {}
        for report in self.unfinished:
            for name, count in report.goal.items():
                goals[name] = max(count, goals.get(name, 0))
        return goals

    def records_read(self) -> int:
        """The most records read before any failure that the run has not caught up with."""
        return max((report.records_read for report in self.unfinished), default=0)

    @property
    def unfinished(self) -> list[RecoveryReport]:
        """The failures that the run has not caught up with."""
        return [report for report in self.reports if report.caught_up_s is None]
