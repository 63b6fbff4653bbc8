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
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, assert_never

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.newest import Newest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.progress import CheckpointStats
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.coordinators.run_state import RunState
from everstream.core.coordinators.stall_warning import StallWarning
from everstream.core.coordinators.strategy import CheckpointStrategy, Wait
from everstream.core.ids import Epoch, Generation, ShardId, TaskNumber, WorkerId
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


class Coordinator:
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
        self._run = RunState(plan, policy, generation, manifests, unwritten)
        self._has_former_plan = before is not None
        """The same run had other shards before, and can return to them."""
        if before is not None:
            self._run.succeed(before._run)
        self._strategy = strategy(self._run)
        self._stall_warning = StallWarning(policy.slow_after_s)
        self._final_deadline = FinalDeadline(self._run)
        self._stop_by_s: float | None = None
        """When a run that was asked to stop stops without a checkpoint."""
        self._return_at_s = 0.0
        self._paused: set[ShardId] = set()
        """Shards that raised an error and are retried after a pause."""
        self._said_of_spares: set[str] = set()

    # What callers can read about the run.

    @property
    def plan(self) -> Plan:
        return self._run.plan

    @property
    def phase(self) -> Phase:
        return self._run.phase

    @property
    def generation(self) -> Generation:
        return self._run.generation

    @property
    def worker_count(self) -> int:
        """The number of workers that have joined."""
        return len(self._run.workers)

    @property
    def manifests(self) -> Sequence[EpochManifest]:
        """The checkpoints that the run can roll back to, newest first."""
        return self._run.manifests

    @property
    def unwritten(self) -> EpochManifest | None:
        """What the run begins with, until it is in the store."""
        return self._run.unwritten

    @property
    def line(self) -> Mapping[ShardId, CheckpointRecord]:
        """The checkpoints that the run would roll back to if everything failed now."""
        return self._run.line

    @property
    def stable_epoch(self) -> Epoch:
        return self._run.stable_epoch

    @property
    def recoveries(self) -> Newest[RecoveryReport]:
        return self._run.restarts.book.reports

    @property
    def checkpoint_stats(self) -> CheckpointStats:
        return self._run.checkpoint_stats

    @property
    def names_what_goes(self) -> bool:
        """Objects are deleted when an order names them, rather than when no manifest names them."""
        return self._strategy.names_what_goes

    @property
    def lost_frames(self) -> int:
        """Frames that could not be sent again, because a log was lost with its process."""
        return self._run.progress.lost_frames(self._run.line)

    def is_calm(self, from_s: float) -> bool:
        """All shards work, nothing is being written, and epochs are at least this far apart."""
        run = self._run
        apart = run.every_s is None or run.every_s >= from_s
        return run.phase is Phase.RUNNING and run.writing is None and run.stop is None and apart

    @property
    def is_pausing(self) -> bool:
        """A shard has failed, and is retried after a pause."""
        return bool(self._paused)

    def totals(self) -> dict[str, int]:
        """Operator -> records received so far, over all its shards (sources: emitted)."""
        return self._run.progress.totals()

    def records_read(self) -> int:
        return self._run.progress.records_read()

    def set_interval(self, every_s: float) -> None:
        """Set the time between two epochs."""
        self._run.set_interval(every_s)

    # Workers.

    def on_process_joined(self, process: TaskNumber, address: Any, now_s: float) -> list[Order]:
        """A process has started, or started again: it becomes a worker or a spare."""
        run = self._run
        if run.over:
            run.outbox.add(Dismiss(process))
            return run.outbox.take()
        had = run.workers.leave(process)
        if had is not None:
            lost = self._worker_lost(had, "its task was started again")
            self._failure(lost, f"worker {had} came back", run.plan.workers[had], had, None, now_s)
        if not run.over:
            worker = run.workers.join(process, address)
            if worker is not None:
                self._took_place(process, worker, now_s)
        return run.outbox.take()

    def on_process_lost(self, process: TaskNumber, how: str, now_s: float) -> list[Order]:
        """A process died or was silent for too long. A spare, if any, replaces a worker."""
        run = self._run
        if run.over:
            return run.outbox.take()
        stood_by = process in run.workers.spares
        worker = run.workers.leave(process)
        if stood_by:
            run.outbox.tell(SpareLost(how))
        elif worker is not None:
            lost, shards = self._worker_lost(worker, how), run.plan.workers[worker]
            self._failure(lost, f"worker {worker} ({how})", shards, worker, None, now_s)
            spare = None if run.over else run.workers.fill(worker)
            if spare is not None:
                self._took_place(spare, worker, now_s)
        return run.outbox.take()

    def _took_place(self, process: TaskNumber, worker: WorkerId, now_s: float) -> None:
        run = self._run
        run.outbox.add(AssignWorker(process, worker))
        run.restarts.book.restarted(tuple(str(s) for s in run.plan.workers[worker]), now_s)
        if run.phase is not Phase.GATHERING:
            self._strategy.on_worker_back(worker, now_s)
        elif run.workers.complete:
            self._strategy.go_back(run.plan.shards, now_s)

    def on_start_failed(
        self, process: TaskNumber, error: EverstreamError, now_s: float
    ) -> list[Order]:
        """A process could not even start. Spark retries, but not for ever.

        If all workers are present, it would have been a spare, and the run does not wait for it.
        """
        run = self._run
        if run.over:
            return run.outbox.take()
        if run.workers.complete:
            if error.message not in self._said_of_spares:
                self._said_of_spares.add(error.message)
                run.outbox.tell(StartFailed(int(process), error.message, spare=True))
            return run.outbox.take()
        run.outbox.tell(StartFailed(int(process), error.message))
        too_many = run.restarts.start_failed(process, error, run.stable_epoch, now_s)
        if too_many is not None:
            run.end(Outcome.FAILED, too_many)
        return run.outbox.take()

    def on_injected_kill(self, worker: WorkerId, now_s: float) -> None:
        """We are about to kill this worker ourselves: that does not count against the pipeline."""
        self._run.restarts.injected(worker, now_s)

    # Reports.

    def on_report(self, report: Report, now_s: float) -> list[Order]:
        """A report from a shard, or from a worker about its links."""
        if not self._run.over and self._strategy.is_current(report):
            self._hear(report, now_s)
        return self._run.outbox.take()

    def _hear(self, report: Report, now_s: float) -> None:
        run, strategy = self._run, self._strategy
        match report:
            case Progress():
                run.progress.heard(report)
                if run.phase in (Phase.RUNNING, Phase.FINISHING):
                    run.restarts.progressed(now_s)
            case Census():
                if run.quiesce.wanted:  # a cycle that ends now would make things move again
                    if run.quiesce.on_census(report):
                        self._stop(run.quiesce.reason or "", now_s)
                    return
                for cycle in run.termination.on_census(report):
                    run.tell_all(EndLoop(cycle, run.generation))
            case CheckpointTaken(record=record):
                run.checkpoint_stats.add(record)
                strategy.on_checkpoint(record, now_s)
            case CheckpointFailed():
                self._final_deadline.refused()
                strategy.on_checkpoint_failed(report, now_s)
            case Committed(shard=shard, number=number):
                run.committed(shard, number, strategy.last_number(shard))
                run.end_when_committed(now_s)
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
        run = self._run
        manifest = run.store_answered()
        begins = manifest is run.unwritten
        run.keep(manifest)
        if begins and not run.over:
            self._strategy.on_begun(now_s)
        elif not run.over:
            self._strategy.on_manifest_written(manifest, now_s)
            run.end_when_committed(now_s)
        return run.outbox.take()

    def on_manifest_failed(self, error: EverstreamError, now_s: float) -> list[Order]:
        """The manifest is known not to be in the store."""
        run = self._run
        manifest = run.store_answered()
        if run.over:
            return run.outbox.take()
        if isinstance(error, LeaseLost):
            return self.on_replaced(error)
        if isinstance(error, StoreGone):
            run.end(Outcome.FAILED, RunFailed("the store is gone", error))
            return run.outbox.take()
        self._strategy.on_manifest_failed(manifest, error, now_s)
        run.end_when_committed(now_s)
        return run.outbox.take()

    def on_replaced(self, error: LeaseLost) -> list[Order]:
        """Another driver has taken over the store: nothing that this one does counts any more."""
        run = self._run
        if not run.over:
            run.end(Outcome.FAILED, RunFailed(f"this driver was replaced: {error}", error))
        return run.outbox.take()

    # Time and requests.

    def on_tick(self, now_s: float) -> list[Order]:
        """Time has passed: a checkpoint may be due, or something may be taking too long."""
        self._say_what_is_slow(now_s)
        run = self._run
        late = self._stop_by_s is not None and now_s >= self._stop_by_s
        if late and run.stop is not None and not run.over:
            if run.quiesce.wanted and not run.final:
                self._give_up_quiesce("its checkpoint was not taken in time", now_s)
            else:
                self._stop_without_checkpoint()
            return run.outbox.take()
        given_up = self._final_deadline.given_up(now_s) if not self._paused else None
        if given_up is not None:
            run.end(Outcome.FAILED, given_up)
            return run.outbox.take()
        ends = run.plan.cycles and not run.quiesce.wanted and run.progress.sources_ended()
        if ends and run.phase is Phase.RUNNING:
            for question in run.termination.questions():
                run.tell_all(question)
        if self._paused and now_s >= self._return_at_s and not run.over:
            self._go_back((), now_s)
        if self._has_caught_up():
            run.quiesce.begin("the end of the run", math.inf, ends_run=True)
        if run.quiesce.wanted and run.stop is None and not run.over:
            self._quiesce(now_s)
        self._let_strategy_act(now_s)
        return run.outbox.take()

    def on_stop(self, reason: str, now_s: float) -> list[Order]:
        """Stop with a checkpoint, so that the next run resumes from here."""
        run = self._run
        if run.phase not in (Phase.FINISHING, Phase.DONE):
            run.quiesce.end()
            if run.stop is None:
                self._stop(reason, now_s)
        return run.outbox.take()

    def on_quiesce(self, reason: str, now_s: float) -> list[Order]:
        """Stop with a checkpoint and nothing in flight, to continue with other shards."""
        run = self._run
        if run.stop is None and run.phase not in (Phase.FINISHING, Phase.DONE):
            run.quiesce.begin(reason, now_s + run.policy.checkpoint_timeout_s)
        return run.outbox.take()

    @property
    def can_be_succeeded(self) -> bool:
        """The run is not over, and nothing is being written that only this coordinator knows of."""
        return self._run.writing is None and not self._run.over

    @property
    def can_quiesce(self) -> bool:
        """No stop was requested, and the run is not about to end."""
        run = self._run
        return run.stop is None and run.phase not in (Phase.FINISHING, Phase.DONE)

    @property
    def is_quiescing(self) -> bool:
        return self._run.quiesce.wanted

    @property
    def changes_shards(self) -> bool:
        """The run quiesces to continue with other shards, rather than to end."""
        return self._run.quiesce.wanted and not self._run.quiesce.ends_run

    def on_asked(self, now_s: float) -> list[Order]:
        """Take a checkpoint of everything done up to now; `is_asked` until that is stable."""
        self._strategy.on_asked(now_s)
        self._let_strategy_act(now_s)
        return self._run.outbox.take()

    @property
    def is_asked(self) -> bool:
        return self._strategy.is_asked

    # Implementation.

    def _stop(self, reason: str, now_s: float) -> None:
        run = self._run
        run.begin_stop(reason)
        ends = run.quiesce.wanted and run.quiesce.ends_run
        patience_s = run.policy.checkpoint_timeout_s if ends else run.stop_patience_s
        self._stop_by_s = now_s + patience_s
        if run.phase is Phase.GATHERING or not run.policy.checkpoints:
            run.end(Outcome.STOPPED)
        else:
            self._let_strategy_act(now_s)

    def _has_caught_up(self) -> bool:
        """The run is to end when it has caught up with its sources, and it has."""
        run = self._run
        if not run.policy.until_caught_up or run.phase is not Phase.RUNNING or self._paused:
            return False
        if run.stop is not None or run.quiesce.wanted or run.progress.sources_ended():
            return False
        return run.progress.sources_caught_up()

    def _quiesce(self, now_s: float) -> None:
        """Ask the shards to pause, and check whether anything still moves."""
        run = self._run
        if now_s >= run.quiesce.by_s:
            self._give_up_quiesce("records in flight did not arrive in time", now_s)
        elif run.phase is Phase.RUNNING and not self._paused:
            for command in run.quiesce.commands(run.generation):
                run.tell_all(command)

    def _give_up_quiesce(self, why: str, now_s: float) -> None:
        """Resume from the last checkpoint: paused shards cannot resume in any other way."""
        run = self._run
        run.outbox.tell(QuiesceGivenUp(run.quiesce.reason or "", why))
        run.quiesce.end()
        run.withdraw_stop()
        self._stop_by_s = None
        if run.phase is not Phase.GATHERING:
            self._go_back(run.plan.shards, now_s)

    def _stop_without_checkpoint(self) -> None:
        """Back-pressure, a store or a worker keeps the last checkpoint from being taken in time.

        Output prepared since the last stable checkpoint is aborted, as after a failure.
        """
        run, wait = self._run, self._strategy.waits_for()
        if run.final:
            return  # the next run has nothing left to do, so the last results must be committed
        waited_for = wait.what if wait is not None else None
        run.outbox.tell(StoppedWithoutCheckpoint(waited_for, int(run.stable_epoch)))
        run.end(Outcome.STOPPED)

    def _worker_lost(self, worker: WorkerId, how: str) -> WorkerLost:
        shards = tuple(str(shard) for shard in self._run.plan.workers[worker])
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
        run = self._run
        report = run.restarts.open(what, shards, worker, now_s)
        from_epoch = self._strategy.resumes_from()
        run.outbox.tell(
            replace(event, injected=report.injected, from_epoch=from_epoch, retry_s=pause_s)
        )
        too_many = run.restarts.too_many(report, worker, error, now_s)
        if too_many is not None:
            run.end(Outcome.FAILED, too_many)
        return too_many is None and run.phase is not Phase.GATHERING

    def _shard_failed(self, failed: ShardFailed, now_s: float) -> None:
        """An operator or a sink raised: whatever it needs may be back after a pause.

        Until then nothing is rolled back. Other failures in the meantime count as the same one.
        """
        run = self._run
        if run.unwritten is not None and not run.writing and isinstance(failed.error, ShareRefused):
            if self._has_former_plan:
                run.hand_over(Refused(failed.error))
            else:
                run.end(Outcome.FAILED, failed.error)
            return
        if self._paused:
            self._paused.add(failed.shard)
            return
        if run.restarts.repeats.has_seen(failed.error, run.stable_epoch):
            self._end_of_no_use(failed, now_s)
            return
        pause_s = run.restarts.back_off.pause_s(now_s)
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
        run = self._run
        what = f"{failed.shard} failed"
        run.restarts.open(what, [failed.shard], None, now_s)
        back = f"epoch {run.stable_epoch}" if run.stable_epoch else "the start"
        message = (
            f"{what} in the same way again after rolling back to {back}: not retried a third "
            "time, because it would fail again"
        )
        run.end(Outcome.FAILED, RunFailed(message, failed.error))

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
        workers = self._run.plan.workers
        shards = [*workers[cut.sender], *workers[cut.receiver]]
        names = tuple(str(shard) for shard in shards)
        event = ConnectionCut(int(cut.sender), int(cut.receiver), cut.how, shards=names)
        self._failure(event, what, shards, None, EnvironmentFault(what), now_s)

    def _say_what_is_slow(self, now_s: float) -> None:
        run = self._run
        wait = self._strategy.waits_for()
        if wait is None and run.phase is Phase.FINISHING:
            wait = Wait("committing the last results", sorted(run.committing))
        waited_s = self._stall_warning.due(wait.what if wait else None, now_s)
        if wait is not None and waited_s is not None:
            missing = tuple(sorted(str(shard) for shard in wait.missing))
            run.outbox.tell(Stalled(wait.what, waited_s, missing, wait.why or ""))
