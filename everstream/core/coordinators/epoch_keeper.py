"""Keeps checkpoints in numbered epochs: everybody takes part, and everybody goes back together.

Two rules keep it honest. A rollback never starts while a manifest is being written, because
until the store has answered nobody knows which epoch is the last stable one. And nobody runs
before everybody has restored, so a frame can only ever be of the present generation or older.
"""

from collections.abc import Sequence
from typing import ClassVar, assert_never

from everstream.core.checkpoint_record import CheckpointRecord
from everstream.core.coordinators.epoch_ledger import EpochLedger
from everstream.core.coordinators.keeper import THE_STORE, Keeper, ReturnReport, Wait
from everstream.core.coordinators.patience import listed
from everstream.core.coordinators.run_state import RETRY_S, RunState
from everstream.core.ids import NO_EPOCH, CheckpointNumber, Epoch, HostId, ShardId
from everstream.core.manifest import EpochManifest, records_for, shard_counts
from everstream.core.messages import (
    CheckpointFailed,
    Halted,
    Report,
    Restore,
    Restored,
    RestoreFailed,
    Rewired,
    Stable,
    StartCheckpoint,
)
from everstream.core.orders import Outcome, Phase
from everstream.errors import EverstreamError, InternalError, RunFailed


class EpochKeeper(Keeper):
    """Coordinated checkpoints, for the whole run."""

    names_what_goes: ClassVar[bool] = False

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._ledger = EpochLedger(frozenset(run.plan.shards), run.stable_epoch)
        self._restoring: set[ShardId] = set()
        self._rollback_waits = False
        self._stop_epoch: Epoch | None = None
        self._timer_s: float | None = None
        """Since when the time to the next epoch is counted."""
        self._not_before_s = 0.0
        self._final_failed = False
        self._asked_s: float | None = None
        """Since when somebody waits for an epoch that begins later than this."""
        self._records_at_epoch = 0
        self._line_s: float | None = None
        """When the stable epoch began, or this driver started to run."""

    # Reports.

    def is_current(self, report: Report) -> bool:
        return report.generation == self._run.generation

    def last_number(self, shard: ShardId) -> CheckpointNumber:
        return CheckpointNumber(self._run.stable_epoch)

    def on_checkpoint(self, record: CheckpointRecord, now_s: float) -> None:
        self._ledger.add(record)
        self._write_when_complete(now_s)

    def on_checkpoint_failed(self, report: CheckpointFailed, now_s: float) -> None:
        epoch = Epoch(report.number)
        self._run.outbox.note(
            f"epoch {epoch} given up: {report.shard} could not save: {report.reason}", True, epoch
        )
        self._final_failed |= report.final
        if report.final or epoch == self._ledger.in_flight:
            self._ledger.abort()
            self._not_before_s = now_s + RETRY_S

    def on_return(self, report: ReturnReport, now_s: float) -> None:
        match report:
            case Restored(shard=shard):
                self._restoring.discard(shard)
                self._resume_when_restored(now_s)
            case RestoreFailed(shard=shard, reason=reason):
                self._fall_back(shard, reason)
            case Halted() | Rewired():
                raise InternalError(f"{report.shard} was never asked to halt or make room")
            case _:
                assert_never(report)

    # The store.

    def on_manifest_written(self, manifest: EpochManifest, now_s: float) -> None:
        run = self._run
        self._line_s = manifest.began_s or self._line_s
        if self._asked_s is not None and manifest.began_s >= self._asked_s:
            self._asked_s = None
        if self._rollback_waits:
            self._roll_back()
        elif run.phase is Phase.RUNNING:
            run.tell_all(Stable(manifest.epoch))
            if self._is_last(manifest):
                run.finish(run.plan.sink_shards(), now_s)

    def on_manifest_failed(
        self, manifest: EpochManifest, error: EverstreamError, now_s: float
    ) -> None:
        """The epoch never happened."""
        self._run.outbox.note(f"epoch {manifest.epoch} given up: {error}", True, manifest.epoch)
        self._not_before_s = now_s + RETRY_S
        if self._rollback_waits:
            self._roll_back()

    # Epochs.

    def on_tick(self, now_s: float) -> None:
        """Start an epoch if one is due; give one up that takes too long."""
        run = self._run
        if run.phase is not Phase.RUNNING or run.writing:
            return
        if self._ledger.in_flight is not None:
            self._give_up_if_late(now_s)
            return
        if now_s < self._not_before_s:
            return
        if self._ledger.all_final():
            self._write_when_complete(now_s)
        elif run.stop is not None:
            self._stop_epoch = self._start_epoch(now_s, stop=True)
        elif self._epoch_due(now_s):
            self._start_epoch(now_s, stop=False)

    def _give_up_if_late(self, now_s: float) -> None:
        """Shards that are late with its checkpoint may still take it; it counts for nobody."""
        timeout_s, ledger = self._run.policy.checkpoint_timeout_s, self._ledger
        if ledger.in_flight is None or now_s - ledger.began_s < timeout_s:
            return
        missing = listed(sorted(str(shard) for shard in self._missing()))
        what = f"epoch {ledger.in_flight} given up: not complete after {timeout_s:g} s"
        why = self._run.headway.holding_up(ledger.in_flight, self._missing())
        text = f"{what}; still missing: {missing}. Held up by {why}"
        self._run.outbox.note(text, True, ledger.in_flight)
        ledger.abort()
        self._not_before_s = now_s + RETRY_S

    def _missing(self) -> Sequence[ShardId]:
        """The shards whose checkpoints the epoch in flight waits for."""
        have = self._ledger.records.keys() | self._ledger.finals.keys()
        return [shard for shard in self._run.plan.shards if shard not in have]

    def on_asked(self, now_s: float) -> None:
        self._asked_s = now_s

    @property
    def is_asked(self) -> bool:
        return self._asked_s is not None

    def _epoch_due(self, now_s: float) -> bool:
        if self._final_failed or self.is_asked:
            return True
        policy = self._run.policy
        if not policy.checkpoints:
            return False
        every_s, since_s = self._run.every_s, self._timer_s
        by_time = every_s is not None and since_s is not None and now_s >= since_s + every_s
        step, read = policy.every_records, self._run.headway.records_read()
        return by_time or (step is not None and read - self._records_at_epoch >= step)

    def _start_epoch(self, now_s: float, stop: bool) -> Epoch:
        run = self._run
        epoch = self._ledger.start(now_s)
        self._final_failed = False
        self._records_at_epoch = run.headway.records_read()
        self._timer_s = now_s
        run.tell_all(StartCheckpoint(epoch, stop))
        self._write_when_complete(now_s)
        return epoch

    def _write_when_complete(self, now_s: float) -> None:
        run, ledger = self._run, self._ledger
        if run.writing is not None or run.phase is not Phase.RUNNING:
            return
        records = ledger.complete()
        if ledger.all_final():
            records = ledger.close_with_finals(now_s)
        if records is None or ledger.in_flight is None:
            return
        manifest = EpochManifest(
            epoch=ledger.in_flight,
            records=records,
            pipeline=run.plan.graph.name,
            final=all(record.final for record in records.values()),
            began_s=ledger.began_s,
            duration_s=now_s - ledger.began_s,
            shard_counts=shard_counts(run.plan),
            key_groups=run.plan.key_groups,
            most_shards=run.most_shards,
            described=run.plan.described,
            returns=run.returns,
        )
        ledger.abort()
        self._records_at_epoch = sum(
            record.counts[name][1]
            for record in records.values()
            for name in run.headway.sources & set(record.counts)
        )
        run.write(manifest)

    def _is_last(self, manifest: EpochManifest) -> bool:
        """A stop may have been taken back since."""
        stopped = self._run.stop is not None and manifest.epoch == self._stop_epoch
        return manifest.final or stopped

    # Going back.

    def plan_of_return(self) -> str:
        return f"going back to epoch {self._run.stable_epoch}"

    def on_host_back(self, host: HostId, now_s: float) -> None:
        if not self._rollback_waits:
            self._run.outbox.send(host, self._restore_command())

    def go_back(self, failed: Sequence[ShardId], now_s: float) -> None:
        run = self._run
        shards = [str(shard) for shard in run.plan.shards]
        run.restarts.book.going_back(shards, now_s - (self._line_s or now_s), 0)
        self._roll_back()

    def _roll_back(self) -> None:
        """Everybody goes back to the line, under a new generation."""
        run = self._run
        run.next_generation()
        self._rollback_waits = run.writing is not None
        if self._rollback_waits:
            return
        run.loops.reset()
        self._ledger.roll_back(run.line, [run.stable_epoch])
        self._final_failed = False
        run.headway.forget()
        run.headway.went_back(run.generation, run.line.items())
        self._restoring = set(run.plan.shards)
        run.tell_all(self._restore_command())

    def _restore_command(self) -> Restore:
        run = self._run
        return Restore(run.generation, run.stable_epoch, records_for(run.plan, run.line))

    def _resume_when_restored(self, now_s: float) -> None:
        run = self._run
        if run.phase is not Phase.RESTORING or self._restoring or not run.hosts.complete:
            return
        run.resume(run.generation, now_s)
        if run.manifests and self._is_last(run.manifests[0]):
            run.finish((), now_s)  # restoring has committed everything
            return
        self._line_s = self._line_s or now_s
        self._timer_s = now_s
        self._records_at_epoch = run.headway.records_read()

    def _fall_back(self, shard: ShardId, reason: str) -> None:
        """The newest checkpoint cannot be read: take the one before it, and say so.

        On the way back the sinks take back what the broken epoch showed, so nobody, not even the
        next driver, may restore that epoch any more: before anybody goes back, the older manifest
        is written again, as the newest.
        """
        run = self._run
        broken = run.stable_epoch
        if broken == NO_EPOCH:
            run.end(Outcome.FAILED, RunFailed(f"{shard} cannot start: {reason}"))
            return
        what, older = f"epoch {broken} cannot be restored ({shard}: {reason})", run.older_manifest
        if older is None:
            run.end_damaged(what)
            return
        run.outbox.note(f"{what}; falling back to epoch {older.epoch}", True)
        self._ledger.started = Epoch(max(self._ledger.started, broken))
        run.write(older)
        self._roll_back()

    # Patience.

    def waits_for(self) -> Wait | None:
        run, ledger = self._run, self._ledger
        if run.writing is not None:
            then = ", and going back waits for it" if self._rollback_waits else ""
            return Wait(f"writing the manifest of epoch {run.writing.epoch}{then}", why=THE_STORE)
        if run.phase is Phase.RESTORING and run.hosts.complete:
            what = f"restoring epoch {run.stable_epoch} (generation {run.generation})"
            return Wait(what, tuple(self._restoring))
        if run.phase is Phase.RUNNING and ledger.in_flight is not None:
            why = run.headway.holding_up(ledger.in_flight, self._missing())
            return Wait(f"epoch {ledger.in_flight}", self._missing(), why)
        return None
