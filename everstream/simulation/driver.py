"""A simulated driver: takes over the store, starts workers, obeys its coordinator, writes manifests.

The pending operations of a driver do not stop when it dies: a write may still land, a message
arrive. So each driver is a separate object, and checks whether it is still the living one.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, assert_never

from everstream.core.checkpointing.manifest import KEPT_MANIFESTS, EpochManifest, manifests_in
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import TaskNumber, WorkerId, first_generation
from everstream.core.messages import Command, Report, Shutdown
from everstream.core.orders import (
    AssignWorker,
    Discard,
    Dismiss,
    EndRun,
    Order,
    Outcome,
    Publish,
    Quiesced,
    Refused,
    SendTo,
    WriteManifest,
)
from everstream.core.plan import plan_changed, rescaled, shard_counts
from everstream.core.plan_change import (
    Decision,
    Facts,
    FailRun,
    GiveUp,
    PlanChange,
    ReturnToFormer,
    StartQuiesce,
    TakePlan,
)
from everstream.core.upgrade.compatibility import GoingOn, going_on
from everstream.errors import EverstreamError, LeaseLost, StoreError
from everstream.simulation.workers import SimulatedWorker
from everstream.state.manifest_append import ManifestAppend
from everstream.state.store import CheckpointStore, Lease

if TYPE_CHECKING:
    from everstream.simulation.world import World


class SimulatedDriver:
    """One attempt of the driver. It is up when it has taken over the store."""

    coordinator: Coordinator
    plan_change: PlanChange
    store: CheckpointStore
    lease: Lease

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.up = False
        self.alive = True
        """It may have been replaced for a while without knowing it."""
        self.workers: dict[TaskNumber, SimulatedWorker] = {}
        """The living attempts of its tasks; any other attempt is a zombie."""
        self.starting: set[TaskNumber] = set()
        """Tasks that Spark is about to run."""
        self._present: set[TaskNumber] = set()
        """Tasks that have joined, and were not lost since."""
        self._places: dict[WorkerId, SimulatedWorker] = {}

    @property
    def is_zombie(self) -> bool:
        return self.world.driver is not self

    def take_over(self) -> None:
        """Get the lease and the content of the store; retry while the store fails.

        Not after another driver has begun to: a claim names the lease that it takes over from.
        """
        world = self.world
        if not self.alive or self.is_zombie:
            return
        self.store = world.store = CheckpointStore(world.disk)
        self.store.on_damage = world.note
        try:
            self.lease = world.lease = self.store.acquire_lease(f"driver-{self.number}")
            resumption = self._going_on(manifests_in(self.store))
            self.store.sweep(self.lease)
        except StoreError:
            world.after(0.05, self.take_over)
            return
        self.up = True
        world.event(f"driver {self.number} starts")
        world.plan = resumption.settles or world.wanted
        generation = first_generation(self.lease.number)
        self.coordinator = world.coordinator = world.scheme.coordinator(
            world.plan,
            world.policy,
            generation,
            resumption.manifests,
            unwritten=resumption.unwritten,
        )
        self.plan_change = PlanChange(
            world.scheme,
            world.policy,
            self.coordinator,
            target=world.wanted if resumption.settles is not None else None,
            spares=world.spares,
            pack_after_s=world.pack_after_s,
        )
        self._tick()
        for number in range(len(world.plan.workers) + world.spares):
            self.start_worker(TaskNumber(number))

    def _going_on(self, manifests: list[EpochManifest]) -> GoingOn:
        """What a run that changes only its shards resumes from; tests make other changes."""
        now = shard_counts(self.world.wanted)
        if all(manifest.shard_counts == now for manifest in manifests):
            return GoingOn(manifests)
        return going_on(manifests, self.world.wanted, self.world.scheme.log)

    def start_worker(self, number: TaskNumber) -> None:
        """As Spark does: some time after the task was lost, it runs again, if there is a slot for it."""
        world = self.world
        self.starting.add(number)

        def start() -> None:
            self.starting.discard(number)
            if not self.alive or self._is_over or number in world.lost_slots:
                return
            world.attempts[number] += 1
            self._begin(number)

        world.after(0.05, start)

    def _begin(self, number: TaskNumber) -> None:
        world = self.world
        started = SimulatedWorker(world, number, world.attempts[number], self, world.scheme)
        self.workers[number] = started
        world.everybody.append(started)
        started.to_driver.carry(lambda: self._on_hello(started))

    def _on_hello(self, worker: SimulatedWorker) -> None:
        if not self._hears(worker):
            return
        self._present.add(worker.number)
        if worker.plan is not self.coordinator.plan:
            self._replan(worker)
            return
        self.world.event(f"worker {worker.number} joins")
        now_s = self.world.scheduler.now_s
        self.obey(self.coordinator.on_process_joined(worker.number, worker, now_s))

    def _place(self, worker: SimulatedWorker, id: WorkerId) -> None:
        """Takes effect at once: the messages it is sent next take their time, and come after."""
        worker.take_place(id)
        self._places[id] = worker
        if self.world.tuning.version:
            worker.on_tune(self.world.tuning)

    # Plans.

    def _perform(self, decisions: list[Decision]) -> None:
        world = self.world
        for decision in decisions:
            match decision:
                case StartQuiesce(reason=reason):
                    self.obey(self.coordinator.on_quiesce(reason, world.scheduler.now_s))
                case TakePlan(successor=successor, explained=explained):
                    self._take_plan(successor, explained=explained)
                case ReturnToFormer(successor=successor):
                    if not self.is_zombie:
                        counts = shard_counts(successor.plan)
                        world.wanted = rescaled(world.wanted, counts, successor.plan.key_groups)
                    self._take_plan(successor, explained=True)
                case GiveUp(error=error):
                    world.event(str(error))
                case FailRun(error=error):
                    for worker in self.workers.values():
                        self._send(worker, Shutdown())
                    self._end(Outcome.FAILED, error)
                case Publish(event=event):
                    world.tell(event)
                case _:
                    assert_never(decision)

    def _take_plan(self, successor: Coordinator, *, explained: bool) -> None:
        """The same workers get another plan, and what they begin with once they have loaded it."""
        self.world.tell(plan_changed(self.coordinator.plan, successor.plan, explained=explained))
        self.coordinator = successor
        if not self.is_zombie:
            self.world.plan, self.world.coordinator = successor.plan, successor
        for worker in list(self.workers.values()):
            self._replan(worker)

    def _replan(self, worker: SimulatedWorker) -> None:
        """The process stays, and forgets everything it had; messages in flight to it are lost."""

        def replan() -> None:
            if worker.alive and self._hears(worker) and worker.plan is not self.coordinator.plan:
                worker.alive = False
                self._begin(worker.number)

        worker.from_driver.carry(lambda: worker.when_free(replan))

    def on_report(self, worker: SimulatedWorker, report: Report) -> None:
        """Reports of zombies are dropped, as the driver drops those of earlier attempts."""
        if self._hears(worker) and worker.plan is self.coordinator.plan:
            self.obey(self.coordinator.on_report(report, self.world.scheduler.now_s))

    def _hears(self, worker: SimulatedWorker) -> bool:
        return self.alive and self.workers.get(worker.number) is worker

    def on_worker_lost(self, number: TaskNumber, how: str) -> None:
        self._present.discard(number)
        self.obey(self.coordinator.on_process_lost(number, how, self.world.scheduler.now_s))

    def on_stop(self) -> None:
        self.obey(self.coordinator.on_stop("asked to", self.world.scheduler.now_s))

    def _tick(self) -> None:
        world = self.world
        if self.alive and not self._is_over:
            facts = Facts(len(self._present), shard_counts(world.wanted))
            self._perform(self.plan_change.look(self.coordinator, facts, world.scheduler.now_s))
            self.obey(self.coordinator.on_tick(world.scheduler.now_s))
            world.scheduler.after(0.01, self._tick, waits=True)

    def obey(self, orders: list[Order]) -> None:
        world = self.world
        for order in orders:
            match order:
                case SendTo(worker=id, command=command):
                    self._send(self._places[id], command)
                case AssignWorker(process=number, worker=id):
                    self._place(self.workers[number], id)
                case Dismiss(process=number):
                    self._send(self.workers[number], Shutdown())
                case WriteManifest(manifest=manifest):
                    world.event(f"epoch {manifest.epoch} is being written")
                    world.moment("writing")
                    self._start_writing(manifest)
                case Discard(objects=objects):
                    self._remove(partial(self.store.discard, objects))
                case Publish(event=event):
                    world.tell(event)
                case EndRun() | Quiesced() | Refused() if self.is_zombie:
                    world.event(f"driver {self.number}, which was replaced, ends: {order}")
                    self.alive = False
                case Quiesced():
                    self._perform(self.plan_change.on_quiesced(self.coordinator))
                case Refused(error=error):
                    self._perform(self.plan_change.on_refused(self.coordinator, error))
                case EndRun(outcome=outcome, error=error):
                    self._end(outcome, error)
                case _:
                    assert_never(order)

    def _end(self, outcome: Outcome, error: EverstreamError | None) -> None:
        world = self.world
        world.event(f"the run {outcome.value}")
        world.outcome, world.error = outcome, error
        world.history.refused = outcome is Outcome.FAILED and self._all_rotten()
        if error is not None:
            world.note(str(error))

    @property
    def _is_over(self) -> bool:
        """The run has ended, and this driver knows."""
        return self.world.outcome is not None and not self.is_zombie

    def _all_rotten(self) -> bool:
        """No checkpoint that the run may roll back to is intact: it must stop, not start over."""
        self.world.disk.odd.clear()
        kept = self.coordinator.manifests
        return bool(kept) and all(
            any(
                self.store.problem_of(ref)
                for record in manifest.records.values()
                for ref in record.all_objects
            )
            for manifest in kept
        )

    def _send(self, worker: SimulatedWorker, command: Command) -> None:
        worker.from_driver.carry(lambda: worker.when_free(lambda: worker.on_command(command)))

    # Manifests.

    def _start_writing(self, manifest: EpochManifest) -> None:
        number = next(self.world.numbers)
        append = self.store.append(self.lease, {**manifest.to_json(), "number": number})
        self.world.after(0.01, lambda: self._write(manifest, number, append))

    def _write(self, manifest: EpochManifest, number: int, append: ManifestAppend) -> None:
        """One step of the write. A dead driver's write may still land, unless its lease is lost."""
        world = self.world
        if not self.alive and world.scheduler.random.random() < 0.5:
            return
        error: StoreError | None = None
        try:
            next(append)
        except StopIteration:
            world.answers.on_answer(number, landed=True)
            self._stable(manifest)
        except LeaseLost as lost:
            error = lost
        except StoreError as failure:
            world.answers.on_answer(number, landed=False)
            world.event(f"epoch {manifest.epoch} is given up")
            world.moment("given up")
            error = failure
        else:
            world.after(0.02, lambda: self._write(manifest, number, append))
            return
        world.after(0.005, lambda: self._on_written(error))

    def _stable(self, manifest: EpochManifest) -> None:
        world = self.world
        world.history.epochs += 1
        world.event(f"epoch {manifest.epoch} is stable")
        world.moment("stable")
        if {record.final for record in manifest.records.values()} == {True, False}:
            world.moment("ending")

    def _on_written(self, error: StoreError | None) -> None:
        if not self.alive or self._is_over:
            return
        now_s = self.world.scheduler.now_s
        if error is not None:
            self.obey(self.coordinator.on_manifest_failed(error, now_s))
        else:
            self.obey(self.coordinator.on_manifest_written(now_s))
            objects = not self.coordinator.names_what_goes
            self._remove(partial(self.store.prune, KEPT_MANIFESTS, objects=objects))

    def _remove(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoreError as error:
            # As on Spark: what was not removed does no harm, and if the lease is lost the next
            # manifest will tell the coordinator.
            self.world.note(str(error))
