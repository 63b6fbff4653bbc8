"""The coordinator of a run as a state machine: workers, reports and time in, orders out.

    GATHERING ─all workers─► RESTORING ─all restored─► RUNNING ─last epoch stable─► FINISHING
                               ▲                        │                             │
                               └──── a failure ◄────────┴─────────────────────────────┤
                                                                      all committed ──► DONE

It watches workers, counts failures, and ends cycles and the run. A strategy decides how checkpoints
become stable and which shards roll back after a failure: one strategy for epochs, one for recovery
lines.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, assert_never

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.newest import Newest
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.coordinators.run_state import RunState
from everstream.core.coordinators.stall_warning import StallWarning
from everstream.core.coordinators.strategy import CheckpointStrategy, Wait
from everstream.core.ids import Generation, ShardId, TaskNumber, WorkerId
from everstream.core.messages import (
    Census,
    CheckpointFailed,
    CheckpointTaken,
    Committed,
    EndLoop,
    Halted,
    LinkCut,
    Progress,
    Report,
    Restored,
    RestoreFailed,
    Rewired,
    ShardFailed,
)
from everstream.core.orders import AssignWorker, Dismiss, Order, Outcome, Phase, Policy, Refused
from everstream.core.plan import Plan
from everstream.errors import (
    EnvironmentFault,
    EverstreamError,
    LeaseLost,
    RunFailed,
    ShareRefused,
    StoreGone,
)
from everstream.events import (
    AnyFailure,
    ConnectionCut,
    OperatorFailed,
    QuiesceGivenUp,
    SpareLost,
    Stalled,
    StartFailed,
    StoppedWithoutCheckpoint,
    WorkerLost,
)

TIMES_AS_LONG = 3
"""A checkpoint may take this long while there is other work."""


class FinalDeadline:
    """Ends a run that waits too long for the store when nothing else is left to do."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._limit_s = TIMES_AS_LONG * run.policy.checkpoint_timeout_s
        self._wait: Hashable = None
        self._since_s = 0.0
        self._refusals = 0

    def refused(self) -> None:
        """The store has answered with an error: retry the request, and start the wait again."""
        self._refusals += 1

    def given_up(self, now_s: float) -> RunFailed | None:
        """The error that ends the run, if such a wait has lasted too long without any progress."""
        what = self._what()
        run = self._run
        saved = run.checkpoint_stats.regular + run.checkpoint_stats.forced
        wait = what and (what, run.generation, run.stable_epoch, saved, self._refusals)
        if wait != self._wait:
            self._wait, self._since_s = wait, now_s
        if what is None or now_s - self._since_s < self._limit_s:
            return None
        back = f"epoch {run.stable_epoch}" if run.stable_epoch else "the start"
        return RunFailed(
            f"{what} is not in the store after {self._limit_s:g} s ({TIMES_AS_LONG} times "
            f"checkpoint_timeout), and nothing else is left to do. Check that the store answers "
            f"and has room, then run again: the next run resumes from {back}."
        )

    def _what(self) -> str | None:
        run = self._run
        if run.phase is Phase.RESTORING and run.writing is not None:
            return f"the manifest of epoch {run.writing.epoch}"
        if run.phase is Phase.RUNNING and run.progress.all_ended():
            return "the last checkpoint"
        return None


MakeStrategy: TypeAlias = Callable[[RunState], CheckpointStrategy]


class Coordinator(RunState):
    """Decides for the whole run. Every method takes the time and returns orders."""

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        generation: Generation,
        manifests: Sequence[EpochManifest],
        strategy: MakeStrategy,
        before: "Coordinator | None" = None,
        unwritten: bool = False,
    ) -> None:
        super().__init__(plan, policy, generation, manifests, unwritten)
        self._has_former_plan = before is not None
        """The same run had other shards before, and can return to them."""
        if before is not None:
            self.succeed(before)
        self._strategy = strategy(self)
        self._stall_warning = StallWarning(policy.slow_after_s)
        self._final_deadline = FinalDeadline(self)
        self._stop_by_s: float | None = None
        """When a run that was asked to stop stops without a checkpoint."""
        self._return_at_s = 0.0
        self._paused: set[ShardId] = set()
        """Shards that raised an error and are retried after a pause."""
        self._said_of_spares: set[str] = set()

    # What callers can read about the run.

    @property
    def recoveries(self) -> Newest[RecoveryReport]:
        return self.restarts.book.reports

    @property
    def names_what_goes(self) -> bool:
        """Objects are deleted when an order names them, rather than when no manifest names them."""
        return self._strategy.names_what_goes

    @property
    def lost_frames(self) -> int:
        """Frames that could not be sent again, because a log was lost with its process."""
        return self.progress.lost_frames(self.line)

    def is_calm(self, from_s: float) -> bool:
        """All shards work, nothing is being written, and epochs are at least this far apart."""
        apart = self.every_s is None or self.every_s >= from_s
        return self.phase is Phase.RUNNING and self.writing is None and self.stop is None and apart

    @property
    def is_pausing(self) -> bool:
        """A shard has failed, and is retried after a pause."""
        return bool(self._paused)

    # Workers.

    def on_process_joined(self, process: TaskNumber, address: Any, now_s: float) -> list[Order]:
        """A process has started, or started again: it becomes a worker or a spare."""
        if self.over:
            self.outbox.add(Dismiss(process))
            return self.outbox.take()
        had = self.workers.leave(process)
        if had is not None:
            lost = self._worker_lost(had, "its task was started again")
            self._failure(lost, f"worker {had} came back", self.plan.workers[had], had, None, now_s)
        if not self.over:
            worker = self.workers.join(process, address)
            if worker is not None:
                self._took_place(process, worker, now_s)
        return self.outbox.take()

    def on_process_lost(self, process: TaskNumber, how: str, now_s: float) -> list[Order]:
        """A process died or was silent for too long. A spare, if any, replaces a worker."""
        if self.over:
            return self.outbox.take()
        stood_by = process in self.workers.spares
        worker = self.workers.leave(process)
        if stood_by:
            self.outbox.tell(SpareLost(how))
        elif worker is not None:
            lost, shards = self._worker_lost(worker, how), self.plan.workers[worker]
            self._failure(lost, f"worker {worker} ({how})", shards, worker, None, now_s)
            spare = None if self.over else self.workers.fill(worker)
            if spare is not None:
                self._took_place(spare, worker, now_s)
        return self.outbox.take()

    def _took_place(self, process: TaskNumber, worker: WorkerId, now_s: float) -> None:
        self.outbox.add(AssignWorker(process, worker))
        self.restarts.book.restarted(tuple(str(s) for s in self.plan.workers[worker]), now_s)
        if self.phase is not Phase.GATHERING:
            self._strategy.on_worker_back(worker, now_s)
        elif self.workers.complete:
            self._strategy.go_back(self.plan.shards, now_s)

    def on_start_failed(
        self, process: TaskNumber, error: EverstreamError, now_s: float
    ) -> list[Order]:
        """A process could not even start. Spark retries, but not for ever.

        If all workers are present, it would have been a spare, and the run does not wait for it.
        """
        if self.over:
            return self.outbox.take()
        if self.workers.complete:
            if error.message not in self._said_of_spares:
                self._said_of_spares.add(error.message)
                self.outbox.tell(StartFailed(int(process), error.message, spare=True))
            return self.outbox.take()
        self.outbox.tell(StartFailed(int(process), error.message))
        too_many = self.restarts.start_failed(process, error, self.stable_epoch, now_s)
        if too_many is not None:
            self.end(Outcome.FAILED, too_many)
        return self.outbox.take()

    def on_injected_kill(self, worker: WorkerId, now_s: float) -> None:
        """We are about to kill this worker ourselves: that does not count against the pipeline."""
        self.restarts.injected(worker, now_s)

    # Reports.

    def on_report(self, report: Report, now_s: float) -> list[Order]:
        """A report from a shard, or from a worker about its links."""
        if not self.over and self._strategy.is_current(report):
            self._hear(report, now_s)
        return self.outbox.take()

    def _hear(self, report: Report, now_s: float) -> None:
        strategy = self._strategy
        match report:
            case Progress():
                self.progress.heard(report)
                if self.phase in (Phase.RUNNING, Phase.FINISHING):
                    self.restarts.progressed(now_s)
            case Census():
                if self.quiesce.wanted:  # a cycle that ends now would make things move again
                    if self.quiesce.on_census(report):
                        self._stop_with_checkpoint(self.quiesce.reason or "", now_s)
                    return
                for cycle in self.termination.on_census(report):
                    self.tell_all(EndLoop(cycle, self.generation))
            case CheckpointTaken(record=record):
                self.checkpoint_stats.add(record)
                strategy.on_checkpoint(record, now_s)
            case CheckpointFailed():
                self._final_deadline.refused()
                strategy.on_checkpoint_failed(report, now_s)
            case Committed(shard=shard, number=number):
                self.committed(shard, number, strategy.last_number(shard))
                self.end_when_committed(now_s)
            case Halted() | Rewired() | Restored() | RestoreFailed():
                strategy.on_return(report, now_s)
            case ShardFailed():
                self._shard_failed(report, now_s)
            case LinkCut():
                self._link_cut(report, now_s)
            case _:
                assert_never(report)

    # The store.

    def on_manifest_written(self, now_s: float) -> list[Order]:
        """The manifest's contents are stable from here on, whatever fails next."""
        manifest = self.store_answered()
        begins = manifest is self.unwritten
        self.keep(manifest)
        if begins and not self.over:
            self._strategy.on_begun(now_s)
        elif not self.over:
            self._strategy.on_manifest_written(manifest, now_s)
            self.end_when_committed(now_s)
        return self.outbox.take()

    def on_manifest_failed(self, error: EverstreamError, now_s: float) -> list[Order]:
        """The manifest is known not to be in the store."""
        manifest = self.store_answered()
        if self.over:
            return self.outbox.take()
        if isinstance(error, LeaseLost):
            return self.on_replaced(error)
        if isinstance(error, StoreGone):
            self.end(Outcome.FAILED, RunFailed("the store is gone", error))
            return self.outbox.take()
        self._strategy.on_manifest_failed(manifest, error, now_s)
        self.end_when_committed(now_s)
        return self.outbox.take()

    def on_replaced(self, error: LeaseLost) -> list[Order]:
        """Another driver has taken over the store: nothing that this one does counts any more."""
        if not self.over:
            self.end(Outcome.FAILED, RunFailed(f"this driver was replaced: {error}", error))
        return self.outbox.take()

    # Time and requests.

    def on_tick(self, now_s: float) -> list[Order]:
        """Time has passed: a checkpoint may be due, or something may be taking too long."""
        self._say_what_is_slow(now_s)
        late = self._stop_by_s is not None and now_s >= self._stop_by_s
        if late and self.stop is not None and not self.over:
            if self.quiesce.wanted and not self.final:
                self._give_up_quiesce("its checkpoint was not taken in time", now_s)
            else:
                self._stop_without_checkpoint()
            return self.outbox.take()
        given_up = self._final_deadline.given_up(now_s) if not self._paused else None
        if given_up is not None:
            self.end(Outcome.FAILED, given_up)
            return self.outbox.take()
        ends = self.plan.cycles and not self.quiesce.wanted and self.progress.sources_ended()
        if ends and self.phase is Phase.RUNNING:
            for question in self.termination.questions():
                self.tell_all(question)
        if self._paused and now_s >= self._return_at_s and not self.over:
            self._go_back((), now_s)
        if self._has_caught_up():
            self.quiesce.begin("the end of the run", math.inf, ends_run=True)
        if self.quiesce.wanted and self.stop is None and not self.over:
            self._quiesce(now_s)
        self._let_strategy_act(now_s)
        return self.outbox.take()

    def on_stop(self, reason: str, now_s: float) -> list[Order]:
        """Stop with a checkpoint, so that the next run resumes from here."""
        if self.phase not in (Phase.FINISHING, Phase.DONE):
            self.quiesce.end()
            if self.stop is None:
                self._stop_with_checkpoint(reason, now_s)
        return self.outbox.take()

    def on_quiesce(self, reason: str, now_s: float) -> list[Order]:
        """Stop with a checkpoint and nothing in flight, to continue with other shards."""
        if self.stop is None and self.phase not in (Phase.FINISHING, Phase.DONE):
            self.quiesce.begin(reason, now_s + self.policy.checkpoint_timeout_s)
        return self.outbox.take()

    @property
    def can_be_succeeded(self) -> bool:
        """The run is not over, and nothing is being written that only this coordinator knows of."""
        return self.writing is None and not self.over

    @property
    def can_quiesce(self) -> bool:
        """No stop was requested, and the run is not about to end."""
        return self.stop is None and self.phase not in (Phase.FINISHING, Phase.DONE)

    @property
    def is_quiescing(self) -> bool:
        return self.quiesce.wanted

    @property
    def changes_shards(self) -> bool:
        """The run quiesces to continue with other shards, rather than to end."""
        return self.quiesce.wanted and not self.quiesce.ends_run

    def on_asked(self, now_s: float) -> list[Order]:
        """Take a checkpoint of everything done up to now; `is_asked` until that is stable."""
        self._strategy.on_asked(now_s)
        self._let_strategy_act(now_s)
        return self.outbox.take()

    @property
    def is_asked(self) -> bool:
        return self._strategy.is_asked

    # Implementation.

    def _stop_with_checkpoint(self, reason: str, now_s: float) -> None:
        self.begin_stop(reason)
        ends = self.quiesce.wanted and self.quiesce.ends_run
        patience_s = self.policy.checkpoint_timeout_s if ends else self.stop_patience_s
        self._stop_by_s = now_s + patience_s
        if self.phase is Phase.GATHERING or not self.policy.checkpoints:
            self.end(Outcome.STOPPED)
        else:
            self._let_strategy_act(now_s)

    def _has_caught_up(self) -> bool:
        """The run is to end when it has caught up with its sources, and it has."""
        if not self.policy.until_caught_up or self.phase is not Phase.RUNNING or self._paused:
            return False
        if self.stop is not None or self.quiesce.wanted or self.progress.sources_ended():
            return False
        return self.progress.sources_caught_up()

    def _quiesce(self, now_s: float) -> None:
        """Ask the shards to pause, and check whether anything still moves."""
        if now_s >= self.quiesce.by_s:
            self._give_up_quiesce("records in flight did not arrive in time", now_s)
        elif self.phase is Phase.RUNNING and not self._paused:
            for command in self.quiesce.commands(self.generation):
                self.tell_all(command)

    def _give_up_quiesce(self, why: str, now_s: float) -> None:
        """Resume from the last checkpoint: paused shards cannot resume in any other way."""
        self.outbox.tell(QuiesceGivenUp(self.quiesce.reason or "", why))
        self.quiesce.end()
        self.withdraw_stop()
        self._stop_by_s = None
        if self.phase is not Phase.GATHERING:
            self._go_back(self.plan.shards, now_s)

    def _stop_without_checkpoint(self) -> None:
        """Back-pressure, a store or a worker keeps the last checkpoint from being taken in time.

        Output prepared since the last stable checkpoint is aborted, as after a failure.
        """
        wait = self._strategy.waits_for()
        if self.final:
            return  # the next run has nothing left to do, so the last results must be committed
        waited_for = wait.what if wait is not None else None
        self.outbox.tell(StoppedWithoutCheckpoint(waited_for, int(self.stable_epoch)))
        self.end(Outcome.STOPPED)

    def _worker_lost(self, worker: WorkerId, how: str) -> WorkerLost:
        shards = tuple(str(shard) for shard in self.plan.workers[worker])
        return WorkerLost(int(worker), how, shards=shards)

    def _failure(
        self,
        event: AnyFailure,
        what: str,
        shards: Sequence[ShardId],
        worker: WorkerId | None,
        error: EverstreamError | None,
        now_s: float,
    ) -> None:
        if self._survives(event, what, shards, worker, error, now_s):
            self._go_back(shards, now_s)

    def _survives(
        self,
        event: AnyFailure,
        what: str,
        shards: Sequence[ShardId],
        worker: WorkerId | None,
        error: EverstreamError | None,
        now_s: float,
        pause_s: float = 0.0,
    ) -> bool:
        """Count a failure; False if it exceeds the budget and ends the run."""
        report = self.restarts.open(what, shards, worker, now_s)
        from_epoch = self._strategy.resumes_from()
        self.outbox.tell(
            replace(event, injected=report.injected, from_epoch=from_epoch, retry_s=pause_s)
        )
        too_many = self.restarts.too_many(report, worker, error, now_s)
        if too_many is not None:
            self.end(Outcome.FAILED, too_many)
        return too_many is None and self.phase is not Phase.GATHERING

    def _shard_failed(self, failed: ShardFailed, now_s: float) -> None:
        """An operator or a sink raised: whatever it needs may be back after a pause.

        Until then nothing is rolled back. Other failures in the meantime count as the same one.
        """
        if (
            self.unwritten is not None
            and not self.writing
            and isinstance(failed.error, ShareRefused)
        ):
            if self._has_former_plan:
                self.hand_over(Refused(failed.error))
            else:
                self.end(Outcome.FAILED, failed.error)
            return
        if self._paused:
            self._paused.add(failed.shard)
            return
        if self.restarts.repeats.has_seen(failed.error, self.stable_epoch):
            self._end_of_no_use(failed, now_s)
            return
        pause_s = self.restarts.back_off.pause_s(now_s)
        what, shard = f"{failed.shard} failed", failed.shard
        reason = failed.error.message.splitlines()[0]
        event = OperatorFailed(reason, shards=(str(shard),))
        if not self._survives(event, what, [shard], None, failed.error, now_s, pause_s):
            return
        if pause_s:
            self._paused, self._return_at_s = {failed.shard}, now_s + pause_s
        else:
            self._go_back([failed.shard], now_s)

    def _end_of_no_use(self, failed: ShardFailed, now_s: float) -> None:
        """The shard was retried from the checkpoint and failed in the same way."""
        what = f"{failed.shard} failed"
        self.restarts.open(what, [failed.shard], None, now_s)
        back = f"epoch {self.stable_epoch}" if self.stable_epoch else "the start"
        message = (
            f"{what} in the same way again after rolling back to {back}: not retried a third "
            "time, because it would fail again"
        )
        self.end(Outcome.FAILED, RunFailed(message, failed.error))

    def _go_back(self, shards: Sequence[ShardId], now_s: float) -> None:
        """Roll back these shards, along with those in a pause: no rollback can leave them out."""
        paused, self._paused = self._paused, set()
        self._strategy.go_back(sorted({*shards, *paused}) if paused else shards, now_s)

    def _let_strategy_act(self, now_s: float) -> None:
        """Not during a pause: a failed shard takes no checkpoint."""
        if not self._paused:
            self._strategy.on_tick(now_s)

    def _link_cut(self, cut: LinkCut, now_s: float) -> None:
        """Frames in flight between two workers are lost: the shards of both have to roll back."""
        what = (
            f"the connection from worker {cut.sender} to worker {cut.receiver} was cut ({cut.how})"
        )
        workers = self.plan.workers
        shards = [*workers[cut.sender], *workers[cut.receiver]]
        names = tuple(str(shard) for shard in shards)
        event = ConnectionCut(int(cut.sender), int(cut.receiver), cut.how, shards=names)
        self._failure(event, what, shards, None, EnvironmentFault(what), now_s)

    def _say_what_is_slow(self, now_s: float) -> None:
        wait = self._strategy.waits_for()
        if wait is None and self.phase is Phase.FINISHING:
            wait = Wait("committing the last results", sorted(self.committing))
        waited_s = self._stall_warning.due(wait.what if wait else None, now_s)
        if wait is not None and waited_s is not None:
            missing = tuple(sorted(str(shard) for shard in wait.missing))
            self.outbox.tell(Stalled(wait.what, waited_s, missing, wait.why or ""))
