"""`every="auto"`: feeds the planner with what the run observes, and applies its decisions."""

import time

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.newest import Newest
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.ids import ShardId
from everstream.pipeline.checkpointing import Checkpointing, seconds
from everstream.planning.auto import AutoInterval, AutoSettings, CheckpointSeen, Fact, FailureSeen


class AutoPace:
    """The checkpoint interval of one run, adjusted while it runs."""

    def __init__(self, wishes: Checkpointing, now_s: float | None = None) -> None:
        shortest, longest = wishes.between
        target = wishes.recovery_target
        self._planner = AutoInterval(
            AutoSettings(
                initial_s=wishes.every_s or 0.0,
                shortest_s=seconds(shortest),
                longest_s=seconds(longest),
                recovery_target_s=None if target is None else seconds(target),
            ),
            started_s=time.monotonic() if now_s is None else now_s,
        )
        self._failures_told = 0
        self._seen: dict[ShardId, int] = {}
        """Where shards checkpoint on their own: the newest checkpoint of each that was counted."""

    @property
    def every_s(self) -> float:
        return self._planner.interval_s

    def on_epoch(self, manifest: EpochManifest, now_s: float) -> str | None:
        """An epoch is stable. Returns the reason if this changes the interval."""
        records, duration_s = list(manifest.records.values()), manifest.duration_s
        if manifest.log != "none":
            records = [r for r in records if self._seen.get(r.shard, 0) != r.number]
            self._seen |= {record.shard: record.number for record in records}
            if not records:
                return None
            duration_s = max(record.capture_s + record.upload_s for record in records)
        pause_s = max((record.capture_s for record in records), default=0.0)
        return self._see(CheckpointSeen(now_s, pause_s, duration_s))

    def on_recoveries(self, reports: Newest[RecoveryReport], now_s: float) -> str | None:
        """Feed each completed recovery to the planner once. The reason, if the interval changes."""
        reason = None
        for report in reports[max(0, self._failures_told - reports.forgotten) :]:
            if report.restored_s is None:
                break
            self._failures_told += 1
            outage_s = report.restored_s - report.start_s
            reason = self._see(FailureSeen(now_s, outage_s)) or reason
        return reason

    def _see(self, fact: Fact) -> str | None:
        before_s = self.every_s
        decision = self._planner.see(fact)
        if not decision.changed:
            return None
        return (
            f"checkpoints every {decision.interval_s:.3g} s instead of {before_s:.3g} s: "
            f"{decision.reason}"
        )
