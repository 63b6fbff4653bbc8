"""The coordinator of a run as a state machine: hosts, reports and time in, orders out.

    GATHERING ─all hosts─► RESTORING ─all restored─► RUNNING ─last epoch stable─► FINISHING
                               ▲                        │                             │
                               └──── a failure ◄────────┴─────────────────────────────┤
                                                                      all committed ──► DONE

It watches hosts, counts failures, ends loops and the run. How checkpoints become stable, and who
goes back after a failure, it leaves to a keeper: one for epochs, one for recovery lines.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, assert_never

from everstream.core.checkpoint_record import CheckpointRecord
from everstream.core.coordinators.keeper import Keeper, Wait
from everstream.core.coordinators.last_wait import LastWait
from everstream.core.coordinators.patience import Patience, listed
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.coordinators.run_state import RunState
from everstream.core.coordinators.tally import CheckpointTally
from everstream.core.ids import Epoch, Generation, HostId, ShardId, TaskNumber
from everstream.core.manifest import EpochManifest
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
from everstream.core.newest import Newest
from everstream.core.orders import Dismiss, Order, Outcome, Phase, Place, Policy
from everstream.core.plan import Plan
from everstream.errors import EnvironmentFault, EverstreamError, LeaseLost, RunFailed

MakeKeeper: TypeAlias = Callable[[RunState], Keeper]


class Coordinator:
    """Decides for the whole run. Every method takes the time and returns orders."""

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        generation: Generation,
        manifests: Sequence[EpochManifest],
        keeper: MakeKeeper,
        before: "Coordinator | None" = None,
    ) -> None:
        self._run = RunState(plan, policy, generation, manifests)
        if before is not None:
            self._run.goes_on_from(before._run)
        self._keeper = keeper(self._run)
        self._patience = Patience(policy.slow_after_s)
        self._last_wait = LastWait(self._run)
        self._stop_by_s: float | None = None
        """When a run that was asked to stop does so without a checkpoint."""
        self._return_at_s = 0.0
        self._paused: set[ShardId] = set()
        """Shards that raised an error and are tried again after a pause."""
        self._said_of_spares: set[str] = set()

    # What others may know of the run.

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
    def host_count(self) -> int:
        """How many hosts are here."""
        return len(self._run.hosts)

    @property
    def manifests(self) -> Sequence[EpochManifest]:
        """Where we can go back to, newest first."""
        return self._run.manifests

    @property
    def line(self) -> Mapping[ShardId, CheckpointRecord]:
        """The checkpoints we would go back to if everything failed now."""
        return self._run.line

    @property
    def stable_epoch(self) -> Epoch:
        return self._run.stable_epoch

    @property
    def recoveries(self) -> Newest[RecoveryReport]:
        return self._run.restarts.book.reports

    @property
    def tally(self) -> CheckpointTally:
        return self._run.tally

    @property
    def names_what_goes(self) -> bool:
        """Objects are deleted when an order names them, and not when no manifest does any more."""
        return self._keeper.names_what_goes

    @property
    def lost_frames(self) -> int:
        """Frames nobody could send again, because a log had died with its process."""
        return self._run.headway.lost_frames(self._run.line)

    def is_calm(self, from_s: float) -> bool:
        """All shards work, nothing is being written, and epochs are at least so far apart."""
        run = self._run
        apart = run.every_s is None or run.every_s >= from_s
        return run.phase is Phase.RUNNING and run.writing is None and run.stop is None and apart

    def totals(self) -> dict[str, int]:
        """Operator -> records taken so far, over all its shards (sources: given)."""
        return self._run.headway.totals()

    def records_read(self) -> int:
        return self._run.headway.records_read()

    def set_interval(self, every_s: float) -> None:
        """From now on so much time lies between two epochs."""
        self._run.every_s = every_s

    # Hosts.

    def on_process_joined(self, process: TaskNumber, address: Any, now_s: float) -> list[Order]:
        """A process has started, or started again: it takes a place, or stands by."""
        run = self._run
        if run.over:
            run.outbox.add(Dismiss(process))
            return run.outbox.take()
        had = run.hosts.leave(process)
        if had is not None:
            self._failure(f"host {had} came back", run.plan.hosts[had], had, None, now_s)
        if not run.over:
            host = run.hosts.join(process, address)
            if host is not None:
                self._took_place(process, host, now_s)
        return run.outbox.take()

    def on_process_lost(self, process: TaskNumber, how: str, now_s: float) -> list[Order]:
        """It is gone, or silent for too long. A spare takes its place; the death of one harms nobody."""
        run = self._run
        if run.over:
            return run.outbox.take()
        stood_by = process in run.hosts.spares
        host = run.hosts.leave(process)
        if stood_by:
            run.outbox.note(f"a spare is gone ({how}); another one takes its turn", False)
        elif host is not None:
            self._failure(f"host {host} ({how})", run.plan.hosts[host], host, None, now_s)
            spare = None if run.over else run.hosts.fill(host)
            if spare is not None:
                self._took_place(spare, host, now_s)
        return run.outbox.take()

    def _took_place(self, process: TaskNumber, host: HostId, now_s: float) -> None:
        run = self._run
        run.outbox.add(Place(process, host))
        run.restarts.book.restarted(tuple(str(s) for s in run.plan.hosts[host]), now_s)
        if run.phase is not Phase.GATHERING:
            self._keeper.on_host_back(host, now_s)
        elif run.hosts.complete:
            self._keeper.go_back(run.plan.shards, now_s)

    def on_start_failed(
        self, process: TaskNumber, error: EverstreamError, now_s: float
    ) -> list[Order]:
        """A process could not even start; Spark will try again, but not for ever.

        Where every place is taken it would have been a spare, which nobody waits for.
        """
        run = self._run
        if run.over:
            return run.outbox.take()
        if run.hosts.complete:
            if error.message not in self._said_of_spares:
                self._said_of_spares.add(error.message)
                run.outbox.note(f"a spare could not start: {error.message}", True)
            return run.outbox.take()
        run.outbox.note(f"host {process} could not start: {error.message}", True)
        too_many = run.restarts.start_failed(process, error, run.stable_epoch, now_s)
        if too_many is not None:
            run.end(Outcome.FAILED, too_many)
        return run.outbox.take()

    def on_injected_kill(self, host: HostId, now_s: float) -> None:
        """We are about to kill this host ourselves: that is not held against the pipeline."""
        self._run.restarts.injected(host, now_s)

    # Reports.

    def on_report(self, report: Report, now_s: float) -> list[Order]:
        """A shard says something, or a host of its links."""
        if not self._run.over and self._keeper.is_current(report):
            self._hear(report, now_s)
        return self._run.outbox.take()

    def _hear(self, report: Report, now_s: float) -> None:
        run, keeper = self._run, self._keeper
        match report:
            case Progress():
                run.headway.heard(report)
                if run.phase in (Phase.RUNNING, Phase.FINISHING):
                    run.restarts.progressed(now_s)
            case Census():
                if run.settling.wanted:  # a cycle that ends now would make things move again
                    if run.settling.on_census(report):
                        self._stop(run.settling.reason or "", now_s)
                    return
                for cycle in run.loops.on_census(report):
                    run.tell_all(EndLoop(cycle, run.generation))
            case CheckpointTaken(record=record):
                run.tally.add(record)
                keeper.on_checkpoint(record, now_s)
            case CheckpointFailed():
                self._last_wait.refused()
                keeper.on_checkpoint_failed(report, now_s)
            case Committed(shard=shard, number=number):
                run.committing.committed(shard, number, keeper.last_number(shard))
                run.end_when_committed(now_s)
            case Halted() | Rewired() | Restored() | RestoreFailed():
                keeper.on_return(report, now_s)
            case ShardFailed():
                self._shard_failed(report, now_s)
            case LinkCut():
                self._link_cut(report, now_s)
            case _:
                assert_never(report)

    # The store.

    def on_manifest_written(self, now_s: float) -> list[Order]:
        """What it says is stable from here on, whatever fails next."""
        run = self._run
        manifest, run.writing = run.writing, None
        assert manifest is not None
        run.keep(manifest)
        if not run.over:
            self._keeper.on_manifest_written(manifest, now_s)
            run.end_when_committed(now_s)
        return run.outbox.take()

    def on_manifest_failed(self, error: EverstreamError, now_s: float) -> list[Order]:
        """The manifest is known not to be there."""
        run = self._run
        manifest, run.writing = run.writing, None
        assert manifest is not None
        if run.over:
            return run.outbox.take()
        if isinstance(error, LeaseLost):
            return self.on_replaced(error)
        self._keeper.on_manifest_failed(manifest, error, now_s)
        run.end_when_committed(now_s)
        return run.outbox.take()

    def on_replaced(self, error: LeaseLost) -> list[Order]:
        """Somebody has taken over the store: whatever is done here is for nothing."""
        run = self._run
        if not run.over:
            run.end(Outcome.FAILED, RunFailed(f"this driver was replaced: {error}", error))
        return run.outbox.take()

    # Time and wishes.

    def on_tick(self, now_s: float) -> list[Order]:
        """Time has passed: a checkpoint may be due, or something take too long."""
        self._say_what_is_slow(now_s)
        run = self._run
        late = self._stop_by_s is not None and now_s >= self._stop_by_s
        if late and run.stop is not None and not run.over:
            if run.settling.wanted and not run.final:
                self._give_up_settling("its checkpoint was not taken in time", now_s)
            else:
                self._stop_without_checkpoint()
            return run.outbox.take()
        given_up = self._last_wait.given_up(now_s) if not self._paused else None
        if given_up is not None:
            run.end(Outcome.FAILED, given_up)
            return run.outbox.take()
        ends = run.plan.cycles and not run.settling.wanted and run.headway.sources_ended()
        if ends and run.phase is Phase.RUNNING:
            for question in run.loops.questions():
                run.tell_all(question)
        if self._paused and now_s >= self._return_at_s and not run.over:
            self._go_back((), now_s)
        if run.settling.wanted and run.stop is None and not run.over:
            self._settle(now_s)
        self._let_keeper_act(now_s)
        return run.outbox.take()

    def on_stop(self, reason: str, now_s: float) -> list[Order]:
        """Stop with a checkpoint, so that the next run goes on from here."""
        run = self._run
        if run.phase not in (Phase.FINISHING, Phase.DONE):
            run.settling.end()
            if run.stop is None:
                self._stop(reason, now_s)
        return run.outbox.take()

    def on_settle(self, reason: str, now_s: float) -> list[Order]:
        """Stop with a checkpoint and nothing on its way, so that hosts can go on with other shards."""
        run = self._run
        if run.stop is None and run.phase not in (Phase.FINISHING, Phase.DONE):
            run.settling.begin(reason, now_s + run.policy.checkpoint_timeout_s)
        return run.outbox.take()

    @property
    def can_be_succeeded(self) -> bool:
        """Nothing is on its way to the store of which only this one knows, and it is not over."""
        return self._run.writing is None and not self._run.over

    @property
    def can_settle(self) -> bool:
        """Nobody has asked it to stop, and it is not about to end."""
        run = self._run
        return run.stop is None and run.phase not in (Phase.FINISHING, Phase.DONE)

    @property
    def is_settling(self) -> bool:
        return self._run.settling.wanted

    @property
    def is_settled(self) -> bool:
        """It has stopped, for others to go on: nobody is to be told that the run is over."""
        return self._run.over and self._run.settling.wanted

    def on_asked(self, now_s: float) -> list[Order]:
        """Take a checkpoint of all that was done up to now; `is_asked` until that is stable."""
        self._keeper.on_asked(now_s)
        self._let_keeper_act(now_s)
        return self._run.outbox.take()

    @property
    def is_asked(self) -> bool:
        return self._keeper.is_asked

    # How it is done.

    def _stop(self, reason: str, now_s: float) -> None:
        run = self._run
        run.stop = reason
        self._stop_by_s = now_s + run.stop_patience_s
        if run.phase is Phase.GATHERING or not run.policy.checkpoints:
            run.end(Outcome.STOPPED)
        else:
            self._let_keeper_act(now_s)

    def _settle(self, now_s: float) -> None:
        """Tell shards to pause, and ask them whether anything moves."""
        run = self._run
        if now_s >= run.settling.by_s:
            self._give_up_settling("what is on its way did not arrive in time", now_s)
        elif run.phase is Phase.RUNNING and not self._paused:
            for command in run.settling.commands(run.generation):
                run.tell_all(command)

    def _give_up_settling(self, why: str, now_s: float) -> None:
        """Go on as before, from the last checkpoint: shards that were told to pause know no other way."""
        run = self._run
        run.outbox.note(
            f"{run.settling.reason} is given up: {why}. The run goes on as it was", True
        )
        run.settling.end()
        run.stop = self._stop_by_s = None
        if run.phase is not Phase.GATHERING:
            self._go_back(run.plan.shards, now_s)

    def _stop_without_checkpoint(self) -> None:
        """Back-pressure, a store or a host keeps the last checkpoint from being taken in time.

        What was prepared since the last stable one is given up, as after a failure.
        """
        run, wait = self._run, self._keeper.waits_for()
        if run.final:
            return  # the next run has nothing left to do, so the last results must be committed
        why = f" ({wait.what} is not complete)" if wait is not None else ""
        back = f"epoch {run.stable_epoch}" if run.stable_epoch else "the start"
        run.outbox.note(
            f"stopping without a checkpoint, which was not taken in time{why}: the next run goes on "
            f"from {back}",
            True,
        )
        run.end(Outcome.STOPPED)

    def _failure(
        self,
        what: str,
        shards: Sequence[ShardId],
        host: HostId | None,
        error: EverstreamError | None,
        now_s: float,
    ) -> None:
        if self._survives(what, shards, host, error, now_s):
            self._go_back(shards, now_s)

    def _survives(
        self,
        what: str,
        shards: Sequence[ShardId],
        host: HostId | None,
        error: EverstreamError | None,
        now_s: float,
        pause_s: float = 0.0,
    ) -> bool:
        """Take note of a failure; False if it was one too many and ends the run."""
        run = self._run
        report = run.restarts.open(what, shards, host, now_s)
        pause = f"trying again in {pause_s:g} s, " if pause_s else ""
        run.outbox.note(f"{what}: {pause}{self._keeper.plan_of_return()}", not report.injected)
        too_many = run.restarts.too_many(report, host, error, now_s)
        if too_many is not None:
            run.end(Outcome.FAILED, too_many)
        return too_many is None and run.phase is not Phase.GATHERING

    def _shard_failed(self, failed: ShardFailed, now_s: float) -> None:
        """An operator or a sink raised: whatever it needs may be back after a pause.

        Until then it is as if nobody had noticed. What fails meanwhile has failed of one cause.
        """
        if self._paused:
            self._paused.add(failed.shard)
            return
        if self._run.restarts.repeats.has_seen(failed.error, self._run.stable_epoch):
            self._end_of_no_use(failed, now_s)
            return
        pause_s = self._run.restarts.back_off.pause_s(now_s)
        what = f"{failed.shard} failed"
        if not self._survives(what, [failed.shard], None, failed.error, now_s, pause_s):
            return
        if pause_s:
            self._paused, self._return_at_s = {failed.shard}, now_s + pause_s
        else:
            self._go_back([failed.shard], now_s)

    def _end_of_no_use(self, failed: ShardFailed, now_s: float) -> None:
        """It was tried again from the checkpoint and came to the same end."""
        run = self._run
        what = f"{failed.shard} failed"
        run.restarts.open(what, [failed.shard], None, now_s)
        back = f"epoch {run.stable_epoch}" if run.stable_epoch else "the start"
        message = (
            f"{what} in the same way again after going back to {back}: it is not tried a third "
            "time, because it would end like this"
        )
        run.end(Outcome.FAILED, RunFailed(message, failed.error))

    def _go_back(self, shards: Sequence[ShardId], now_s: float) -> None:
        """With these go those that wait for the end of a pause: nobody can go back past them."""
        paused, self._paused = self._paused, set()
        self._keeper.go_back(sorted({*shards, *paused}) if paused else shards, now_s)

    def _let_keeper_act(self, now_s: float) -> None:
        """Not in a pause: a shard that failed takes no checkpoint."""
        if not self._paused:
            self._keeper.on_tick(now_s)

    def _link_cut(self, cut: LinkCut, now_s: float) -> None:
        """What was on its way between two hosts is gone: both have lost their place."""
        what = f"the connection from host {cut.sender} to host {cut.receiver} was cut ({cut.how})"
        hosts = self._run.plan.hosts
        shards = [*hosts[cut.sender], *hosts[cut.receiver]]
        self._failure(what, shards, None, EnvironmentFault(what), now_s)

    def _say_what_is_slow(self, now_s: float) -> None:
        run = self._run
        wait = self._keeper.waits_for()
        if wait is None and run.phase is Phase.FINISHING:
            wait = Wait("committing the last results", sorted(run.committing.waiting))
        waited_s = self._patience.lost_with(wait.what if wait else None, now_s)
        if wait is not None and waited_s is not None:
            missing = sorted(str(shard) for shard in wait.missing)
            others = f"; still missing: {listed(missing)}" if missing else ""
            others += f". Held up by {wait.why}" if wait.why else ""
            run.outbox.note(f"{wait.what} is taking longer than {waited_s:.3g} s{others}", True)
