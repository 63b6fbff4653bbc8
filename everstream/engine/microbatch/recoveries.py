"""Recovery reports of micro-batch runs, one per failure, like those of the other engine.

There are two kinds. If a process dies in the middle of a job, Spark retries its task, and the
report of the successful attempt has all that is known of it. If the whole epoch fails, it is run
again from the last stable one. Either has caught up when the next epoch is stable.
"""

from collections.abc import Collection, Sequence

from everstream.core.checkpointing.newest import Newest
from everstream.core.coordinators.recovery_report import RecoveryBook, RecoveryReport
from everstream.core.ids import Epoch, ShardId
from everstream.engine.microbatch.orders import ShardReport


class Recoveries:
    def __init__(self) -> None:
        self._book = RecoveryBook()
        self._began_s = 0.0

    @property
    def reports(self) -> Newest[RecoveryReport]:
        return self._book.reports

    @property
    def reason(self) -> str:
        """The failures that no stable epoch has followed; empty if there are none."""
        return "; ".join(report.what for report in self._book.unfinished)

    @property
    def attempt(self) -> int:
        """One more than the run had failures."""
        return 1 + self._book.reports.total

    def began(self, now_s: float) -> None:
        """A job is ordered: it retries what failed before."""
        self._began_s = now_s
        for report in self._book.unfinished:
            report.restarted_s = now_s if report.restarted_s is None else report.restarted_s

    def failed(self, what: str, shards: Sequence[ShardId], stable: Epoch, now_s: float) -> None:
        names = tuple(map(str, shards))
        self._book.open(
            RecoveryReport(what, names, False, now_s, from_epoch=stable, went_back=names)
        )

    def stable(
        self,
        epoch: Epoch,
        before: Epoch,
        reports: Sequence[ShardReport],
        killed: Collection[ShardId],
        now_s: float,
        wall_s: float,
    ) -> None:
        """This epoch is complete and committed; these shards were killed on purpose in it."""
        read = sum(report.read for report in reports)
        slowest_s = max((report.restored_s for report in reports), default=0.0)
        for unfinished in self._book.unfinished:
            began_s = max(self._began_s, unfinished.restarted_s or 0.0)
            unfinished.restored_s = min(now_s, began_s + slowest_s)
            unfinished.replayed_s = unfinished.caught_up_s = now_s
            unfinished.records_replayed = read
        for report in reports:
            if report.retry:
                self._book.open(self._of_a_process(report, epoch, before, killed, now_s, wall_s))

    def _of_a_process(
        self,
        report: ShardReport,
        epoch: Epoch,
        before: Epoch,
        killed: Collection[ShardId],
        now_s: float,
        wall_s: float,
    ) -> RecoveryReport:
        """The retry marks the detection of the failure; the clocks of two machines may differ."""
        again_s = min(now_s, max(self._began_s, now_s - (wall_s - report.began_at)))
        name = str(report.shard)
        times = "once" if report.retry == 1 else f"{report.retry} times"
        return RecoveryReport(
            what=f"{name}: its process died {times} in epoch {epoch}",
            shards=(name,),
            injected=report.shard in killed,
            detected_s=again_s,
            restarted_s=again_s,
            restored_s=min(now_s, again_s + report.restored_s),
            replayed_s=now_s,
            caught_up_s=now_s,
            from_epoch=before,
            records_replayed=report.processed,
            went_back=(name,),
        )
