"""Checkpoints in numbered epochs: all shards take part, and all roll back together.

Two rules keep it correct. A rollback never starts while a manifest is being written, because the
last stable epoch is unknown until the store has answered. And no shard runs before all have
restored, so a frame is always of the present generation or an older one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, assert_never

from everstream.core.checkpointing.manifest import (
    EpochManifest,
    epoch_manifest,
    fall_back,
    records_for,
)
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.strategy import (
    NOT_BEGUN,
    RETRY_S,
    THE_STORE,
    CheckpointStrategy,
    ReturnReport,
    StrategyRun,
    Wait,
)
from everstream.core.ids import NO_EPOCH, CheckpointNumber, Epoch, ShardId, WorkerId
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
from everstream.events import listed


@dataclass
class EpochLedger:
    """Which shards have reported what."""

    shards: frozenset[ShardId]
    started: Epoch = NO_EPOCH
    """The highest number ever assigned; the number of an aborted epoch is not used again."""
    in_flight: Epoch | None = None
    began_s: float = 0.0
    records: dict[ShardId, CheckpointRecord] = field(default_factory=dict)
    finals: dict[ShardId, CheckpointRecord] = field(default_factory=dict)

    def start(self, now_s: float) -> Epoch:
        self.started = Epoch(self.started + 1)
        self.in_flight = self.started
        self.began_s = now_s
        self.records = {}
        return self.started

    def add(self, record: CheckpointRecord) -> None:
        if record.final:
            self.finals[record.shard] = record
        elif Epoch(record.number) == self.in_flight:
            self.records[record.shard] = record

    def abort(self) -> None:
        self.in_flight = None
        self.records = {}

    def complete(self) -> dict[ShardId, CheckpointRecord] | None:
        """The records of the epoch in flight, once there is one for every shard."""
        if self.in_flight is None:
            return None
        chosen = dict(self.records)
        for shard, final in self.finals.items():
            if shard not in chosen and final.previous < self.in_flight:
                chosen[shard] = final
        return chosen if len(chosen) == len(self.shards) else None

    def all_final(self) -> bool:
        return len(self.finals) == len(self.shards)

    def close_with_finals(self, now_s: float) -> dict[ShardId, CheckpointRecord]:
        """Every shard has ended: the last epoch, made of their final checkpoints."""
        self.start(now_s)
        return dict(self.finals)

    def roll_back(self, line: Mapping[ShardId, CheckpointRecord], others: Iterable[Epoch]) -> None:
        """Forget what came after the line. Shards that had ended in it stay ended."""
        self.abort()
        self.finals = {shard: record for shard, record in line.items() if record.final}
        self.started = Epoch(max([self.started, *others]))


class CoordinatedStrategy(CheckpointStrategy):
    """Coordinated checkpoints, for the whole run."""

    names_what_goes: ClassVar[bool] = False

    def __init__(self, run: StrategyRun) -> None:
        self._run = run
        self._ledger = EpochLedger(frozenset(run.plan.shards), run.stable_epoch)
        self._restoring: set[ShardId] = set()
        self._rollback_waits = False
        self._stop_epoch: Epoch | None = None
        self._timer_s: float | None = None
        """When the interval to the next epoch started."""
        self._not_before_s = 0.0
        self._final_failed = False
        self._asked_s: float | None = None
        """When an epoch was requested; only an epoch that begins later answers the request."""
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
        what = f"epoch {epoch} given up: {report.shard} could not save"
        self._run.give_up(epoch, what, report.reason)
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
                raise InternalError(f"{report.shard} was never asked to halt or rewire")
            case _:
                assert_never(report)

    # The store.

    def on_manifest_written(self, manifest: EpochManifest, now_s: float) -> None:
        run = self._run
        run.good(manifest.epoch)
        self._line_s = manifest.began_s or self._line_s
        if self._asked_s is not None and manifest.began_s >= self._asked_s:
            self._asked_s = None
        if self._rollback_waits:
            self._roll_back()
        elif run.phase is Phase.RUNNING:
            run.tell_all(Stable(manifest.epoch))
            if self._is_last(manifest):
                run.finish(run.plan.sink_shards(), now_s)

    def on_begun(self, now_s: float) -> None:
        if self._rollback_waits:
            self._roll_back()
        else:
            self._resume_when_restored(now_s)

    def on_manifest_failed(
        self, manifest: EpochManifest, error: EverstreamError, now_s: float
    ) -> None:
        """The epoch never happened."""
        begins = manifest is self._run.unwritten
        what = NOT_BEGUN if begins else f"epoch {manifest.epoch} given up"
        self._run.give_up(manifest.epoch, what, str(error))
        self._not_before_s = now_s + RETRY_S
        if self._rollback_waits and not self._run.over:
            self._roll_back()

    # Epochs.

    def on_tick(self, now_s: float) -> None:
        """Start an epoch if one is due; abort one that takes too long."""
        run = self._run
        if run.unwritten is not None and now_s >= self._not_before_s:
            self._resume_when_restored(now_s)
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
        """Abort the epoch if it is late. Checkpoints that shards still take for it do not count."""
        timeout_s, ledger = self._run.policy.checkpoint_timeout_s, self._ledger
        if ledger.in_flight is None or now_s - ledger.began_s < timeout_s:
            return
        missing = listed(sorted(str(shard) for shard in self._missing()))
        why = self._run.progress.holding_up(ledger.in_flight, self._missing())
        epoch = ledger.in_flight
        ledger.abort()
        cause = f"not complete after {timeout_s:g} s; still missing: {missing}. Held up by {why}"
        self._run.give_up(epoch, f"epoch {epoch} given up", cause)
        self._not_before_s = now_s + RETRY_S

    def _missing(self) -> Sequence[ShardId]:
        """The shards whose checkpoints the epoch in flight is missing."""
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
        step, read = policy.every_records, self._run.progress.records_read()
        return by_time or (step is not None and read - self._records_at_epoch >= step)

    def _start_epoch(self, now_s: float, stop: bool) -> Epoch:
        run = self._run
        epoch = self._ledger.start(now_s)
        self._final_failed = False
        self._records_at_epoch = run.progress.records_read()
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
        manifest = epoch_manifest(
            run.plan,
            ledger.in_flight,
            records,
            run.newest,
            began_s=ledger.began_s,
            duration_s=now_s - ledger.began_s,
        )
        ledger.abort()
        self._records_at_epoch = sum(
            record.counts[name][1]
            for record in records.values()
            for name in run.progress.sources & set(record.counts)
        )
        run.write(manifest)

    def _is_last(self, manifest: EpochManifest) -> bool:
        """A stop may have been withdrawn since."""
        stopped = self._run.stop is not None and manifest.epoch == self._stop_epoch
        return manifest.final or stopped

    # Rolling back.

    def resumes_from(self) -> int | None:
        return int(self._run.stable_epoch)

    def on_worker_back(self, worker: WorkerId, now_s: float) -> None:
        if not self._rollback_waits:
            self._run.outbox.send(worker, self._restore_command())

    def go_back(self, failed: Sequence[ShardId], now_s: float) -> None:
        run = self._run
        run.going_back(run.plan.shards, now_s - (self._line_s or now_s), 0)
        self._roll_back()

    def _roll_back(self) -> None:
        """All shards roll back to the line, under a new generation."""
        run = self._run
        run.next_generation()
        self._rollback_waits = run.writing is not None
        if self._rollback_waits:
            return
        self._ledger.roll_back(run.line, [run.stable_epoch])
        self._final_failed = False
        run.went_back(run.line.items(), everybody=True)
        self._restoring = set(run.plan.shards)
        run.tell_all(self._restore_command())

    def _restore_command(self) -> Restore:
        run = self._run
        records = records_for(run.plan, run.line)
        reason = run.rollback_reason
        return Restore(
            run.generation, run.stable_epoch, records, run.takes_back, reason, run.attempt
        )

    def _resume_when_restored(self, now_s: float) -> None:
        run = self._run
        if run.phase is not Phase.RESTORING or self._restoring or not run.workers.complete:
            return
        if self._rollback_waits or run.write_unwritten():
            return
        run.resume(run.generation, now_s)
        if run.manifests and self._is_last(run.manifests[0]):
            run.finish((), now_s)  # restoring has committed everything
            return
        self._line_s = self._line_s or now_s
        self._timer_s = now_s
        self._records_at_epoch = run.progress.records_read()

    def _fall_back(self, shard: ShardId, reason: str) -> None:
        """The newest checkpoint cannot be read: use the one before it, and report that."""
        run = self._run
        decision = fall_back(run.manifests, "epoch", reason, shard)
        if isinstance(decision, RunFailed):
            run.end(Outcome.FAILED, decision)
            return
        run.outbox.tell(decision.damaged)
        self._ledger.started = Epoch(max(self._ledger.started, run.stable_epoch))
        run.write(decision.manifest)
        self._roll_back()

    # StallWarning.

    def waits_for(self) -> Wait | None:
        run, ledger = self._run, self._ledger
        if run.writing is not None:
            then = "; the rollback starts after it" if self._rollback_waits else ""
            return Wait(f"writing the manifest of epoch {run.writing.epoch}{then}", why=THE_STORE)
        if run.phase is Phase.RESTORING and run.workers.complete:
            what = f"restoring epoch {run.stable_epoch} (generation {run.generation})"
            return Wait(what, tuple(self._restoring))
        if run.phase is Phase.RUNNING and ledger.in_flight is not None:
            why = run.progress.holding_up(ledger.in_flight, self._missing())
            return Wait(f"epoch {ledger.in_flight}", self._missing(), why)
        return None
