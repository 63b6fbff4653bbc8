"""Epoch after epoch: order a job, examine its reports, write the manifest, commit the output.

Exactly-once depends on the order of the last three. Before the manifest is in the store, nothing of
the epoch counts and it can be run again. After that it is never run again, and the next driver
commits what this one did not.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, assert_never

from everstream.core.checkpointing.manifest import (
    KEPT_MANIFESTS,
    EpochManifest,
    epoch_manifest,
    fall_back,
    records_for,
)
from everstream.core.coordinators.restarts import BackOff, FailedCheckpoints, Repeats, RestartBudget
from everstream.core.coordinators.strategy import RETRY_S
from everstream.core.fault_points import Point
from everstream.core.ids import NO_EPOCH, Epoch, Generation, ShardId, first_generation
from everstream.core.orders import Policy
from everstream.engine.microbatch.checking import Complete, Disagreement, examine
from everstream.engine.microbatch.cycles import carries, ended_cycles
from everstream.engine.microbatch.layout import Layout
from everstream.engine.microbatch.orders import (
    ATTEMPTS,
    Failed,
    Order,
    ShardReport,
    Unreadable,
    Unsaved,
)
from everstream.engine.microbatch.output import Output
from everstream.engine.microbatch.recoveries import Recoveries
from everstream.engine.microbatch.sizing import Sizing
from everstream.errors import (
    CorruptObject,
    EnvironmentFault,
    EverstreamError,
    LeaseLost,
    RunFailed,
    StoreError,
    StoreGone,
    said,
)
from everstream.events import CheckpointAborted, CheckpointsSucceed, EpochRepeated, Note, RunEvent
from everstream.pipeline.tuning import Tuning
from everstream.state.manifest_append import Wait, pause
from everstream.state.retention import DEFAULT, Retention
from everstream.state.store import CheckpointStore, Lease

PRUNE_EVERY_S = 1.0
"""Pruning the log takes a while: not in every one of many short epochs."""


class JobLost(EnvironmentFault):
    """The job of an epoch failed; it can be run again."""


class Jobs(Protocol):
    """Runs the tasks of an epoch."""

    def run(self, order: Order) -> list[ShardReport]:
        """All reports of one job. Raises JobLost if the job failed."""


class Watcher:
    """Callbacks on the progress of a run; override those you need."""

    def tell(self, event: RunEvent) -> None:
        """An event for the run's listeners."""

    def killed(self) -> Collection[ShardId]:
        """The shards whose process was killed on purpose in the last job."""
        return ()

    def stable(self, manifest: EpochManifest, reports: Sequence[ShardReport]) -> None:
        """An epoch is in the store, and its output is committed."""

    def reached(self, point: Point) -> None:
        """The run has reached a named point of an epoch: a place to kill it at."""


@dataclass
class Epochs:
    layout: Layout
    store: CheckpointStore
    lease: Lease
    store_url: str
    run: str
    jobs: Jobs
    manifests: list[EpochManifest]
    """The checkpoints to resume from, newest first."""
    sizing: Sizing
    policy: Policy = field(default_factory=Policy)
    watcher: Watcher = field(default_factory=Watcher)
    tuning: Tuning = field(default_factory=Tuning)
    """The changed settings; they are replaced between two epochs when new ones arrive."""
    clock_s: Callable[[], float] = time.monotonic
    wall_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    wait_for_store: Wait = pause
    prune_every_s: float = PRUNE_EVERY_S
    retention: Retention = DEFAULT

    def __post_init__(self) -> None:
        self.output = Output(self.layout.plan, self.store, self.store_url)
        self._budget = RestartBudget(self.policy.max_restarts, self.policy.restart_window_s)
        self._failures = FailedCheckpoints(self.policy.tolerable_failures)
        self._repeats = Repeats()
        self._back_off = BackOff()
        self.recoveries = Recoveries()
        self._pruned_s = self.clock_s()
        self._jobs_run = 0
        self._era = 0
        self._highest = max((manifest.epoch for manifest in self.manifests), default=NO_EPOCH)
        """The highest epoch ever used: no number is used twice."""
        self._epoch_began_s = self.clock_s()
        self.caught_up = False
        """The last epoch has read all available input."""
        self.all_read = False
        """In a catch-up run: the sources have emitted all input that existed at its start."""

    @property
    def newest(self) -> EpochManifest | None:
        return self.manifests[0] if self.manifests else None

    @property
    def stable(self) -> Epoch:
        return self.newest.epoch if self.newest is not None else NO_EPOCH

    @property
    def finished(self) -> bool:
        return self.newest is not None and self.newest.final

    def open(self) -> None:
        """Before the first epoch: make the sinks show what the newest manifest contains."""
        while True:
            try:
                self.output.put_right(self._next_generation(), self.newest)
            except CorruptObject as error:
                self._fall_back(str(error))
            except Exception as error:  # sinks may raise anything
                self._spend(_explained(error), pausing=True)
            else:
                self._era += 1
                self.watcher.reached(Point.IN_RESTORE)
                return

    def step(self) -> bool:
        """Run one epoch; False if it failed."""
        self._epoch_began_s = self.clock_s()
        self.recoveries.began(self._epoch_began_s)
        self.all_read = False
        order = self._order()
        try:
            reports = self.jobs.run(order)
        except JobLost as lost:
            self._spend(lost)
            return False
        verdict = examine(self.layout, order, reports)
        match verdict:
            case Complete():
                return self._complete(order, verdict)
            case Failed(error=error):
                # A store that fails twice in the same way still gets a third try.
                recurs = not isinstance(error, StoreError)
                if recurs and self._repeats.has_seen(error, self.stable):
                    raise RunFailed(f"epoch {order.epoch} failed twice with the same cause", error)
                self._spend(error, pausing=True)
            case Unreadable(reason=reason):
                self._fall_back(reason)
                self.open()
            case Unsaved(reason=reason):
                self._unsaved(order.epoch, f"it could not be saved: {reason}")
            case Disagreement(reason=reason):
                text = f"epoch {order.epoch} is run again: {reason}"
                self._tell_repeated(text)
                self._failed(text)
            case _:
                assert_never(verdict)
        return False

    def close(self, *, hooks: bool) -> None:
        """The run is over: notify the shards of the last epoch, and remove uncommitted output."""
        if hooks and self.newest is not None:
            try:
                self.jobs.run(self._order(closing=True))
            except JobLost as error:
                text = f"the shards could not be notified that the run is over: {error}"
                self.watcher.tell(Note("worker", text, True))
        self._prune()
        try:
            self.output.put_right(self._next_generation(), self.newest)
        except Exception as error:  # nothing is lost: the next run removes leftovers
            text = f"uncommitted output could not be removed from the sinks: {said(error)}"
            self.watcher.tell(Note("sink", text, True))
        self.output.close()

    # Internals.

    def _next_generation(self) -> Generation:
        """Above all generations that tasks have had, with enough room for another job."""
        self._jobs_run += 1
        return Generation(first_generation(self.lease.number) + self._jobs_run * ATTEMPTS)

    def _order(self, *, closing: bool = False) -> Order:
        line = self.newest.records if self.newest is not None else {}
        return Order(
            run=self.run,
            era=self._era,
            epoch=Epoch(self._highest + 1),
            stable=self.stable,
            generation=self._next_generation(),
            records=records_for(self.layout.plan, line),
            budget=self.sizing.budget,
            ended_cycles=ended_cycles(self.layout.plan, line),
            tuning=self.tuning,
            reason=self.recoveries.reason,
            attempt=self.recoveries.attempt,
            closing=closing,
        )

    def _complete(self, order: Order, verdict: Complete) -> bool:
        self.watcher.reached(Point.AFTER_SNAPSHOT)
        manifest = self._manifest(order, verdict)
        try:
            self.store.append_manifest(self.lease, manifest.to_json(), self.wait_for_store)
        except (LeaseLost, StoreGone):
            raise
        except StoreError as error:
            self._unsaved(order.epoch, str(error))
            return False
        if failed := self._failures.succeeded():
            self.watcher.tell(CheckpointsSucceed(int(manifest.epoch), failed))
        before = self.stable
        self.manifests = [manifest, *self.manifests][:KEPT_MANIFESTS]
        self._highest = manifest.epoch
        self.watcher.reached(Point.AFTER_PREPARE)
        self._commit(verdict.reports)
        self.watcher.reached(Point.AFTER_COMMIT)
        read = max((report.read for report in verdict.reports), default=0)
        goes_round = carries(manifest.records) or ended_cycles(self.layout.plan, manifest.records)
        self.caught_up = not (self.sizing.has_more(read) or goes_round)
        all_read = all(report.caught_up or _is_final(report) for report in verdict.reports)
        self.all_read = all_read and not goes_round and self.stable == manifest.epoch
        now_s = self.clock_s()
        self.sizing.note(read, now_s - self._epoch_began_s)
        killed = self.watcher.killed()
        self.recoveries.stable(
            manifest.epoch, before, verdict.reports, killed, now_s, self.wall_s()
        )
        self.watcher.stable(manifest, verdict.reports)
        if now_s - self._pruned_s >= self.prune_every_s:
            self._prune()
            self._pruned_s = now_s
        return True

    def _manifest(self, order: Order, verdict: Complete) -> EpochManifest:
        manifest = epoch_manifest(
            self.layout.plan,
            order.epoch,
            verdict.records,
            self.newest,
            began_s=self._epoch_began_s,
            duration_s=self.clock_s() - self._epoch_began_s,
            written_at=self.wall_s(),
        )
        return replace(manifest, kept=(self.retention.newest, self.retention.age_s))

    def _commit(self, reports: Sequence[ShardReport]) -> None:
        try:
            self.output.commit(self.stable, reports, self.watcher.reached)
        except Exception as error:  # sinks may raise anything; the manifest has what they need
            self._spend(_explained(error), pausing=True)
            self.open()

    def _prune(self) -> None:
        try:
            since_s = self.retention.since_s(self.wall_s())
            self.store.prune(self.retention.newest, since_s=since_s)
        except LeaseLost:
            raise
        except Exception as error:  # any error: the next epoch can be run
            text = f"older checkpoints could not be removed: {said(error)}"
            self.watcher.tell(Note("store", text, True))

    def _unsaved(self, epoch: Epoch, cause: str) -> None:
        """The store has not accepted an epoch: run it again after a pause, but not forever."""
        text = f"epoch {epoch} given up: {cause}"
        is_news = self._failures.failed(self._jobs_run, cause)  # the same epoch is run again
        self.watcher.tell(CheckpointAborted(int(epoch), text, not is_news))
        self._failed(text)
        too_many = self._failures.too_many(cause, self.stable)
        if too_many is not None:
            raise too_many
        self.sleep(RETRY_S)

    def _tell_repeated(self, reason: str, retry_s: float = 0.0) -> None:
        shards, epoch = tuple(map(str, self.layout.plan.shards)), int(self.stable)
        self.watcher.tell(EpochRepeated(reason, shards=shards, from_epoch=epoch, retry_s=retry_s))

    def _failed(self, reason: str) -> None:
        self.recoveries.failed(reason, self.layout.plan.shards, self.stable, self.clock_s())

    def _spend(self, error: EverstreamError, *, pausing: bool = False) -> None:
        """A failure: the run resumes from the last epoch, unless there were too many failures.

        pausing: user code raised, and what it needs may be available again after a pause.
        """
        self._failed(error.message.splitlines()[0])
        if not self._budget.spend(self.clock_s()):
            policy = self.policy
            raise RunFailed(
                f"more than {policy.max_restarts} failures within {policy.restart_window_s:g} s",
                error,
            )
        pause_s = self._back_off.pause_s(self.clock_s()) if pausing else 0.0
        self._tell_repeated(error.message, pause_s)
        if pause_s:
            self.sleep(pause_s)

    def _fall_back(self, reason: str) -> None:
        """The newest checkpoint cannot be read: fall back to the previous one, and report it."""
        decision = fall_back(self.manifests, "epoch", reason)
        if isinstance(decision, RunFailed):
            raise decision
        damaged, older = decision.damaged, decision.manifest
        self.watcher.tell(damaged)
        self._failed(f"{damaged.what} cannot be restored ({damaged.reason})")
        self.store.append_manifest(self.lease, older.to_json(), self.wait_for_store)
        self.manifests = [older, *self.manifests[2:]]


def _is_final(report: ShardReport) -> bool:
    return report.record is not None and report.record.final


def _explained(error: Exception) -> EverstreamError:
    if isinstance(error, EverstreamError):
        return error
    return EnvironmentFault(f"{type(error).__name__}: {said(error)}")
