"""The facts of a run. Only `RunState` changes them, through named moves.

The coordinator and its checkpoint strategy read the facts, which have no setters, and make the
moves. `StrategyRun` in `strategy.py` lists those that a strategy may see and make.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from everstream.core.checkpointing.manifest import KEPT_MANIFESTS, EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.membership import Membership
from everstream.core.coordinators.progress import CheckpointStats, RunProgress
from everstream.core.coordinators.restarts import FailedCheckpoints, Restarts
from everstream.core.coordinators.termination import CycleTermination, Quiesce
from everstream.core.ids import NO_EPOCH, CheckpointNumber, Epoch, Generation, ShardId, WorkerId
from everstream.core.messages import Command, Resume, Shutdown
from everstream.core.orders import (
    PHASE_MOVES,
    Dismiss,
    EndRun,
    Order,
    Outcome,
    Phase,
    Policy,
    Publish,
    Quiesced,
    Refused,
    SendTo,
    WriteManifest,
)
from everstream.core.plan import Plan
from everstream.errors import EverstreamError, InternalError
from everstream.events import CheckpointAborted, CheckpointsSucceed, RunEvent
from everstream.state.manifests import standing


class Outbox:
    """Collects orders, first in, first out."""

    def __init__(self) -> None:
        self._orders: list[Order] = []

    def add(self, order: Order) -> None:
        self._orders.append(order)

    def send(self, worker: WorkerId, command: Command) -> None:
        self._orders.append(SendTo(worker, command))

    def tell(self, event: RunEvent) -> None:
        self._orders.append(Publish(event))

    def take(self) -> list[Order]:
        orders, self._orders = self._orders, []
        return orders


class RunState:
    """The facts of a run, the moves that change them, and the parts that its coordinator works with."""

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        generation: Generation,
        manifests: Sequence[EpochManifest],
        unwritten: bool = False,
    ) -> None:
        """unwritten: the newest of the manifests is not in the store yet (see `redistribute`)."""
        self.plan: Final = plan
        self.policy: Final = policy
        self._every_s = policy.every_s
        self.changed_every_s: float | None = None
        """The interval, if it has changed since the start of the run."""
        self._generation = generation
        self._phase = Phase.GATHERING
        self._stop: str | None = None
        self.stored_manifests: Final = tuple(manifests)
        """The manifests in the store at the start, newest first, given up or not."""
        # Their start times are on the clock of another process, and mean nothing here.
        self._manifests = [replace(manifest, began_s=0.0) for manifest in standing(manifests)]
        self._unwritten = self._manifests[0] if unwritten and self._manifests else None
        self._writing: EpochManifest | None = None
        self.outbox = Outbox()
        self.workers = Membership(plan)
        self.progress = RunProgress(plan)
        self.restarts = Restarts(policy, self.progress)
        self.termination = CycleTermination(plan.cycles)
        self.quiesce = Quiesce(plan.shards)
        self.committing: set[ShardId] = set()
        """The shards whose last commit is outstanding; none before `finish`."""
        self.checkpoint_stats = CheckpointStats()
        self.failures = FailedCheckpoints(policy.tolerable_failures)

    def succeed(self, before: "RunState") -> None:
        """Take over from the same run under another plan: keep its interval and its counts."""
        self._every_s = before._every_s
        self.checkpoint_stats = before.checkpoint_stats
        self.failures = before.failures
        self.restarts = before.restarts
        self.restarts.follow(self.progress)

    # Facts.

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def generation(self) -> Generation:
        return self._generation

    @property
    def every_s(self) -> float | None:
        """The time between two epochs; it may change while the run lasts."""
        return self._every_s

    @property
    def stop(self) -> str | None:
        """Why the run is to stop with a checkpoint; None if it is not."""
        return self._stop

    @property
    def manifests(self) -> Sequence[EpochManifest]:
        """The checkpoints that the run can roll back to, newest first."""
        return self._manifests

    @property
    def unwritten(self) -> EpochManifest | None:
        """What the run begins with, if it is to be written to the store. It is written once every
        shard has loaded its share: if a share cannot be loaded, the store must stay as it was."""
        return self._unwritten

    @property
    def writing(self) -> EpochManifest | None:
        """On its way to the store: until the store has answered, the newest manifest is unknown."""
        return self._writing

    @property
    def line(self) -> Mapping[ShardId, CheckpointRecord]:
        """The checkpoints that the run would roll back to if everything failed now."""
        return self._manifests[0].records if self._manifests else {}

    @property
    def stable_epoch(self) -> Epoch:
        return self._manifests[0].epoch if self._manifests else NO_EPOCH

    @property
    def newest(self) -> EpochManifest | None:
        """The manifest to roll back to if everything failed now; None: the start."""
        return self._manifests[0] if self._manifests else None

    @property
    def rollback_reason(self) -> str:
        """The failures that the run has not resumed from; empty if there are none."""
        unfinished = self.restarts.book.unfinished
        return "; ".join(report.what for report in unfinished if report.restored_s is None)

    @property
    def attempt(self) -> int:
        """One more than the run had failures."""
        return 1 + self.restarts.book.reports.total

    @property
    def takes_back(self) -> bool:
        """Output of checkpoints after the newest one may have been committed."""
        return not self._manifests or self._manifests[0].may_be_behind_output

    @property
    def final(self) -> bool:
        """The newest manifest is the last one of a finished pipeline."""
        return bool(self._manifests) and self._manifests[0].final

    @property
    def stop_patience_s(self) -> float:
        """How long a stop waits for its checkpoint: at least as long as those before it took."""
        newest_s = self._manifests[0].duration_s if self._manifests else 0.0
        return min(self.policy.checkpoint_timeout_s, max(self.policy.stop_grace_s, 3 * newest_s))

    @property
    def over(self) -> bool:
        return self.phase is Phase.DONE

    # Moves.

    def set_interval(self, every_s: float) -> None:
        self._every_s = self.changed_every_s = every_s

    def begin_stop(self, reason: str) -> None:
        self._stop = reason

    def withdraw_stop(self) -> None:
        self._stop = None

    def store_answered(self) -> EpochManifest:
        """The store has answered, with success or an error. Returns the manifest in question."""
        manifest, self._writing = self._writing, None
        assert manifest is not None
        return manifest

    def tell_all(self, command: Command) -> None:
        for worker in self.workers:
            self.outbox.send(worker, command)

    def give_up(self, number: int, what: str, cause: str, owner: object = None) -> None:
        """A checkpoint failed: report it if it is new, and end the run if it exceeds the budget."""
        is_news = self.failures.failed(number, cause, owner)
        self.outbox.tell(CheckpointAborted(int(number), f"{what}: {cause}", not is_news))
        failed = self.failures.too_many(cause, self.stable_epoch)
        if failed is not None and not self.over:
            self.end(Outcome.FAILED, failed)

    def good(self, number: int, owner: object = None) -> None:
        failed = self.failures.succeeded(owner)
        if failed:
            self.outbox.tell(CheckpointsSucceed(int(number), failed))

    def write(self, manifest: EpochManifest) -> None:
        self._writing = manifest
        self.outbox.add(WriteManifest(manifest))

    def write_unwritten(self) -> bool:
        """Every shard has loaded its share. True if the manifest must be stored first."""
        if self._unwritten is not None and self._writing is None:
            self.write(self._unwritten)
        return self._unwritten is not None

    def keep(self, manifest: EpochManifest) -> None:
        """This manifest is the newest in the store."""
        self._unwritten = None
        self._manifests = standing([manifest, *self._manifests])
        del self._manifests[KEPT_MANIFESTS:]

    def next_generation(self) -> Generation:
        """Some shards roll back: what they sent before is void where it matters."""
        self._enter(Phase.RESTORING)
        if self.quiesce.wanted:
            self.quiesce.interrupt()
            self.withdraw_stop()  # no shard may stop before everything has quiesced again
        self.termination.reset()
        self._generation = Generation(self._generation + 1)
        return self._generation

    def going_back(
        self, shards: Iterable[ShardId], rollback_s: float, checkpoints_back: int
    ) -> None:
        """It is decided which shards roll back, and how far."""
        names = [str(shard) for shard in shards]
        self.restarts.book.going_back(names, rollback_s, checkpoints_back)

    def went_back(
        self, records: Iterable[tuple[ShardId, CheckpointRecord | None]], *, everybody: bool = False
    ) -> None:
        """These shards are back at their checkpoints (None: at the empty start)."""
        if everybody:
            self.progress.forget()
        self.progress.went_back(self._generation, records)

    def logged(self, size_bytes: int) -> None:
        """A checkpoint came with this many bytes of message log."""
        self.checkpoint_stats.log_bytes += size_bytes

    def resume(self, generation: Generation, now_s: float) -> None:
        """All shards are restored: run."""
        self.restarts.book.resumed(
            self.stable_epoch, self.progress.records_read(), now_s, self.progress.shown()
        )
        self.tell_all(Resume(generation, self.workers.addresses))
        self._enter(Phase.RUNNING)

    def finish(self, waiting_for: Sequence[ShardId], now_s: float) -> None:
        """The last epoch is stable: the run is over once these have committed it."""
        self._enter(Phase.FINISHING)
        self.committing = set(waiting_for)
        self.end_when_committed(now_s)

    def committed(self, shard: ShardId, number: int, last: CheckpointNumber) -> None:
        """A shard has committed everything up to a number; its last checkpoint counts."""
        if number >= last:
            self.committing.discard(shard)

    def end_when_committed(self, now_s: float) -> None:
        if self.phase is not Phase.FINISHING or self.committing:
            return
        if self.quiesce.wanted and not self.final:
            if self._writing is not None:  # the last manifest is what others resume from
                return
            if not self.quiesce.ends_run:
                self.hand_over(Quiesced())
                return
        caught_up = self.quiesce.wanted and not self.final
        self.restarts.book.ended(now_s)
        stopped = Outcome.CAUGHT_UP if caught_up else Outcome.STOPPED
        self.end(Outcome.FINISHED if self.final else stopped)

    def end(self, outcome: Outcome, error: EverstreamError | None = None) -> None:
        self._enter(Phase.DONE)
        self.tell_all(Shutdown())
        for process in self.workers.spares:
            self.outbox.add(Dismiss(process))
        self.outbox.add(EndRun(outcome, error))

    def hand_over(self, order: Quiesced | Refused) -> None:
        """This coordinator is done, and another one takes over: the workers stay."""
        self._enter(Phase.DONE)
        self.outbox.add(order)

    def _enter(self, phase: Phase) -> None:
        if phase not in PHASE_MOVES[self._phase]:
            raise InternalError(f"a run cannot go from {self._phase.value} to {phase.value}")
        self._phase = phase
