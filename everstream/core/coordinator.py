"""The coordinator as a state machine: hosts, reports and time in, orders out.

    GATHERING ─all hosts─► RESTORING ─all restored─► RUNNING ─last epoch stable─► FINISHING
                               ▲                        │                             │
                               └──── a failure ◄────────┴─────────────────────────────┤
                                                                      all committed ──► DONE

Two rules keep it honest. A rollback never starts while a manifest is being written, because
until the store has answered nobody knows which epoch is the last stable one. And nobody runs
before everybody has restored, so a frame can only ever be of the present generation or older.
"""

from collections.abc import Sequence
from typing import Any

from everstream.core.control import KEPT_MANIFESTS, RETRY_S, RunControl
from everstream.core.ids import NO_EPOCH, Epoch, Generation, HostId, ShardId
from everstream.core.manifest import EpochManifest, records_for, shard_counts, still_valid
from everstream.core.messages import (
    Census,
    CheckpointFailed,
    CheckpointTaken,
    Committed,
    LinkCut,
    Progress,
    Restore,
    Restored,
    RestoreFailed,
    Resume,
    ShardFailed,
    Stable,
    StartCheckpoint,
)
from everstream.core.orders import Order, Outcome, Phase, Policy, WriteManifest
from everstream.core.plan import Plan
from everstream.core.protocols.epochs import EpochLedger
from everstream.errors import EverstreamError, RunFailed


class Coordinator(RunControl):
    """Coordinated checkpoints: everybody in numbered epochs, and everybody goes back together."""

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        generation: Generation,
        manifests: Sequence[EpochManifest] = (),
    ) -> None:
        super().__init__(plan, policy, generation, manifests)
        self.ledger = EpochLedger(frozenset(plan.shards), self.stable_epoch)
        self._restoring: set[ShardId] = set()
        self._rollback_waits = False
        self._stop_epoch: Epoch | None = None
        self._due_s: float | None = None
        self._not_before_s = 0.0
        self._final_failed = False
        self._records_at_epoch = 0
        self._line_s: float | None = None
        """When the stable epoch began, or this driver started to run."""

    def _host_is_back(self, host: HostId, now_s: float) -> None:
        if not self._rollback_waits:
            self._send(host, self._restore_command())

    def _plan_of_return(self) -> str:
        return f"going back to epoch {self.stable_epoch}"

    # Reports.

    def on_report(self, report: Any, now_s: float) -> list[Order]:
        if self._over or report.generation != self.generation:
            return self._take()
        match report:
            case Progress():
                self._progressed(report, now_s)
            case Census():
                self._on_census(report)
            case Restored(shard=shard):
                self._restoring.discard(shard)
                self._resume_when_restored(now_s)
            case CheckpointTaken(record=record):
                self.tally.add(record)
                self.ledger.add(record)
                self._write_when_complete(now_s)
            case CheckpointFailed(epoch=epoch, reason=reason, shard=shard, final=final):
                self._note(f"epoch {epoch} given up: {shard} could not save: {reason}", True)
                self._final_failed |= final
                if final or epoch == self.ledger.in_flight:
                    self.ledger.abort()
                    self._not_before_s = now_s + RETRY_S
            case Committed(shard=shard, epoch=epoch):
                if epoch >= self.stable_epoch:
                    self._committing.discard(shard)
                self._end_when_committed(now_s)
            case RestoreFailed(shard=shard, reason=reason):
                self._fall_back(shard, reason, now_s)
            case LinkCut():
                self._link_cut(report, now_s)
            case ShardFailed(shard=shard, error=error):
                self._failure(f"{shard} failed", [shard], None, error, now_s)
        return self._take()

    # The store.

    def on_manifest_written(self, now_s: float) -> list[Order]:
        """The epoch is stable from here on, whatever fails next."""
        manifest, self._writing = self._writing, None
        assert manifest is not None
        self.manifests = still_valid([manifest, *self.manifests])
        del self.manifests[KEPT_MANIFESTS:]
        self._line_s = manifest.began_s or self._line_s
        if self._over:
            return self._take()
        if self._rollback_waits:
            self._roll_back()
        elif self.phase is Phase.RUNNING:
            for host in self.hosts:
                self._send(host, Stable(manifest.epoch))
            if self._is_last(manifest):
                self.phase = Phase.FINISHING
                self._committing = set(self.plan.sink_shards())
                self._end_when_committed(now_s)
        return self._take()

    def _not_written(self, manifest: EpochManifest, error: EverstreamError, now_s: float) -> None:
        """The epoch never happened."""
        self._note(f"epoch {manifest.epoch} given up: {error}", True)
        self._not_before_s = now_s + RETRY_S
        if self._rollback_waits:
            self._roll_back()

    # Time and wishes.

    def on_tick(self, now_s: float) -> list[Order]:
        """Start an epoch if one is due; say so if we have waited for the store for long."""
        self._say_what_is_slow(now_s)
        self._watch_loops()
        if self.phase is not Phase.RUNNING or self._writing or self.ledger.in_flight is not None:
            return self._take()
        if now_s < self._not_before_s:
            return self._take()
        if self.ledger.all_final():
            self._write_when_complete(now_s)
        elif self._stop is not None:
            self._stop_epoch = self._start_epoch(now_s, stop=True)
        elif self._epoch_due(now_s):
            self._start_epoch(now_s, stop=False)
        return self._take()

    def on_stop(self, reason: str, now_s: float) -> list[Order]:
        """Stop with a checkpoint, so that the next run goes on from here."""
        if self._stop is None and self.phase not in (Phase.FINISHING, Phase.DONE):
            self._stop = reason
            if self.phase is Phase.GATHERING or not self.policy.checkpoints:
                self._end(Outcome.STOPPED)
        return self._take() + (self.on_tick(now_s) if self.phase is Phase.RUNNING else [])

    # How it is done.

    def _epoch_due(self, now_s: float) -> bool:
        if self._final_failed:
            return True
        if not self.policy.checkpoints:
            return False
        by_time = self._due_s is not None and now_s >= self._due_s
        step = self.policy.every_records
        by_records = step is not None and self.records_read() - self._records_at_epoch >= step
        return by_time or by_records

    def _start_epoch(self, now_s: float, stop: bool) -> Epoch:
        epoch = self.ledger.start(now_s)
        self._final_failed = False
        self._records_at_epoch = self.records_read()
        if self.every_s is not None:
            self._due_s = now_s + self.every_s
        for host in self.hosts:
            self._send(host, StartCheckpoint(epoch, stop))
        self._write_when_complete(now_s)
        return epoch

    def _write_when_complete(self, now_s: float) -> None:
        if self._writing is not None or self.phase is not Phase.RUNNING:
            return
        records = self.ledger.complete()
        if self.ledger.all_final():
            records = self.ledger.close_with_finals(now_s)
        if records is None or self.ledger.in_flight is None:
            return
        manifest = EpochManifest(
            epoch=self.ledger.in_flight,
            records=records,
            pipeline=self.plan.graph.name,
            final=all(record.final for record in records.values()),
            began_s=self.ledger.began_s,
            duration_s=now_s - self.ledger.began_s,
            shard_counts=shard_counts(self.plan),
        )
        self.ledger.abort()
        self._records_at_epoch = sum(
            record.counts[name][1]
            for record in records.values()
            for name in self._sources & set(record.counts)
        )
        self._writing = manifest
        self._orders.append(WriteManifest(manifest))

    def _is_last(self, manifest: EpochManifest) -> bool:
        return manifest.final or manifest.epoch == self._stop_epoch

    def _go_back(self, failed: Sequence[ShardId], now_s: float) -> None:
        shards = [str(shard) for shard in self.plan.shards]
        self.book.going_back(shards, now_s - (self._line_s or now_s), 0)
        self._roll_back()

    def _roll_back(self) -> None:
        """Everybody goes back to the line, under a new generation."""
        self.phase = Phase.RESTORING
        self.generation = Generation(self.generation + 1)
        self._rollback_waits = self._writing is not None
        if self._rollback_waits:
            return
        self._reset_loops()
        self.ledger.roll_back(self.line, [self.stable_epoch])
        self._final_failed = False
        self.progress = {
            shard: Progress(shard, self.generation, record.counts)
            for shard, record in self.line.items()
        }
        self._restoring = set(self.plan.shards)
        for host in self.hosts:
            self._send(host, self._restore_command())

    def _restore_command(self) -> Restore:
        return Restore(self.generation, self.stable_epoch, records_for(self.plan, self.line))

    def _resume_when_restored(self, now_s: float) -> None:
        if self.phase is not Phase.RESTORING or self._restoring:
            return
        if len(self.hosts) < len(self.plan.hosts):
            return
        self.book.resumed(self.stable_epoch, self.records_read(), now_s, self._shown())
        for host in self.hosts:
            self._send(host, Resume(self.generation, dict(self.hosts)))
        if self.manifests and self._is_last(self.manifests[0]):
            # Restoring has committed everything: nothing is left to do.
            self.phase = Phase.FINISHING
            self._committing = set()
            self._end_when_committed(now_s)
            return
        self.phase = Phase.RUNNING
        self._line_s = self._line_s or now_s
        if self.every_s is not None:
            self._due_s = now_s + self.every_s
        self._records_at_epoch = self.records_read()

    def _fall_back(self, shard: ShardId, reason: str, now_s: float) -> None:
        """The newest checkpoint cannot be read: take the one before it, and say so.

        On the way back the sinks take back what the broken epoch showed, so nobody, not even the
        next driver, may restore that epoch any more: before anybody goes back, the older manifest
        is written again, as the newest.
        """
        broken = self.stable_epoch
        if broken == NO_EPOCH:
            self._end(Outcome.FAILED, RunFailed(f"{shard} cannot start: {reason}"))
            return
        start = EpochManifest(NO_EPOCH, {}, self.plan.graph.name)
        older = self.manifests[1] if len(self.manifests) > 1 else start
        to = "the start" if older.epoch == NO_EPOCH else f"epoch {older.epoch}"
        self._note(
            f"epoch {broken} cannot be restored ({shard}: {reason}); falling back to {to}", True
        )
        self.ledger.started = Epoch(max(self.ledger.started, broken))
        self._writing = older
        self._orders.append(WriteManifest(older))
        self._roll_back()

    def _waiting(self) -> tuple[str | None, list[str]]:
        if self._writing is not None:
            then = ", and going back waits for it" if self._rollback_waits else ""
            return f"writing the manifest of epoch {self._writing.epoch}{then}", []
        if self.phase is Phase.RESTORING and len(self.hosts) == len(self.plan.hosts):
            what = f"restoring epoch {self.stable_epoch} (generation {self.generation})"
            return what, [str(shard) for shard in self._restoring]
        if self.phase is Phase.RUNNING and self.ledger.in_flight is not None:
            have = self.ledger.records.keys() | self.ledger.finals.keys()
            missing = [str(shard) for shard in self.plan.shards if shard not in have]
            return f"epoch {self.ledger.in_flight}", missing
        return super()._waiting()
