"""A simulated driver: takes over the store, starts hosts, obeys its coordinator, writes manifests.

What a driver has under way does not stop when it dies: a write may still land, a message arrive.
So each driver is an object of its own, and asks whether it is still the living one.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from everstream.core.changes import GoingOn, fallbacks, going_on
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import HostId, TaskNumber, first_generation
from everstream.core.manifest import KEPT_MANIFESTS, EpochManifest, shard_counts
from everstream.core.messages import Command, Report, Shutdown
from everstream.core.orders import (
    Discard,
    Dismiss,
    EndRun,
    Note,
    Order,
    Outcome,
    Place,
    SendTo,
    WriteManifest,
)
from everstream.core.plan import Plan
from everstream.core.respreading import respread
from everstream.errors import LeaseLost, StoreError
from everstream.simulation.hosts import SimulatedHost
from everstream.state.landing import Landing
from everstream.state.store import CheckpointStore, Lease

if TYPE_CHECKING:
    from everstream.simulation.world import World


class SimulatedDriver:
    """One attempt of the driver. It is up when it has taken over the store."""

    coordinator: Coordinator
    store: CheckpointStore
    lease: Lease

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.up = False
        self._next_plan: Plan | None = None
        """What the run goes on with when it stands still."""
        self.alive = True
        """It can be so long after it was replaced, and not know."""
        self.hosts: dict[TaskNumber, SimulatedHost] = {}
        """The living attempts of its tasks; whoever is not in here is a zombie."""
        self._places: dict[HostId, SimulatedHost] = {}

    @property
    def is_zombie(self) -> bool:
        return self.world.driver is not self

    def take_over(self) -> None:
        """Get the lease and what the store holds; as long as the store fails, try again.

        Not after somebody else has begun to: a claim says whom it takes over from.
        """
        world = self.world
        if not self.alive or self.is_zombie:
            return
        self.store = world.store = CheckpointStore(world.disk)
        self.store.on_damage = world.note
        try:
            self.lease = world.lease = self.store.acquire_lease(f"driver-{self.number}")
            manifests = [EpochManifest.from_json(found.body) for found in self.store.manifests()]
            found = self._going_on(manifests)
            if found.rewritten:
                self.store.append_manifest(self.lease, found.manifests[0].to_json())
            self.store.sweep(self.lease)
        except StoreError:
            world.after(0.05, self.take_over)
            return
        self.up = True
        world.event(f"driver {self.number} starts")
        world.plan = found.settles or world.wanted
        generation = first_generation(self.lease.number)
        self.coordinator = world.coordinator = world.scheme.coordinator(
            world.plan, world.policy, generation, found.manifests
        )
        if found.settles is not None:
            self.rescale(world.wanted)
        self._tick()
        for number in range(len(world.plan.hosts) + world.spares):
            self.start_host(TaskNumber(number))

    def _going_on(self, manifests: list[EpochManifest]) -> GoingOn:
        """What a run that changes nothing but its shards goes on from; other changes are for tests."""
        now = shard_counts(self.world.wanted)
        if all(manifest.shard_counts == now for manifest in manifests):
            return GoingOn(manifests)
        return going_on(manifests, self.world.wanted, self.world.scheme.log)

    def start_host(self, number: TaskNumber) -> None:
        """As Spark does: some time after the task was lost, it runs again."""
        world = self.world

        def start() -> None:
            if not self.alive or self._is_over:
                return
            world.attempts[number] += 1
            self._begin(number)

        world.after(0.05, start)

    def _begin(self, number: TaskNumber) -> None:
        world = self.world
        started = SimulatedHost(world, number, world.attempts[number], self, world.scheme)
        self.hosts[number] = started
        world.everybody.append(started)
        started.to_driver.carry(lambda: self._on_hello(started))

    def _on_hello(self, host: SimulatedHost) -> None:
        if not self._hears(host) or self.coordinator.is_settled:
            return  # who comes between two plans is given the next one with all others
        if host.plan is not self.coordinator.plan:
            self._replan(host)
            return
        self.world.event(f"host {host.number} joins")
        now_s = self.world.scheduler.now_s
        self.obey(self.coordinator.on_process_joined(host.number, host, now_s))

    def _place(self, host: SimulatedHost, id: HostId) -> None:
        """Told at once: what it is sent next takes its time, and comes after."""
        host.take_place(id)
        self._places[id] = host
        if self.world.tuning.version:
            host.on_tune(self.world.tuning)

    # Other numbers of shards.

    def rescale(self, plan: Plan) -> None:
        """Bring everything to a standstill, and go on with this plan."""
        self._next_plan = plan
        self.obey(self.coordinator.on_settle("a change of shards", self.world.scheduler.now_s))

    def _settled(self) -> None:
        """The same hosts get another plan once what they begin with is in the store."""
        plan = self._next_plan
        assert plan is not None
        self.world.event("everything stands still")
        manifest = respread(self.coordinator.manifests[0], plan)
        self._start_writing(manifest, lambda error: self._go_on(manifest, plan, error))

    def _go_on(self, manifest: EpochManifest, plan: Plan, error: StoreError | None) -> None:
        world = self.world
        if not self.alive or self._is_over:
            return
        if isinstance(error, LeaseLost):
            self.obey([EndRun(Outcome.FAILED, error)])
            return
        if error is not None:
            world.after(0.05, self._settled)
            return
        self.coordinator = world.scheme.coordinator(
            plan,
            world.policy,
            self.coordinator.generation,
            [manifest, *fallbacks(self.coordinator.manifests, plan, world.scheme.log)],
            self.coordinator,
        )
        if not self.is_zombie:
            world.plan, world.coordinator = plan, self.coordinator
        world.event("other shards take over")
        for host in list(self.hosts.values()):
            self._replan(host)

    def _replan(self, host: SimulatedHost) -> None:
        """The process stays, and forgets everything it had; what was sent to it finds nobody."""

        def replan() -> None:
            if host.alive and self._hears(host) and host.plan is not self.coordinator.plan:
                host.alive = False
                self._begin(host.number)

        host.from_driver.carry(lambda: host.when_free(replan))

    def on_report(self, host: SimulatedHost, report: Report) -> None:
        """Reports of zombies are dropped, as the driver drops those of earlier attempts."""
        if self._hears(host) and host.plan is self.coordinator.plan:
            self.obey(self.coordinator.on_report(report, self.world.scheduler.now_s))

    def _hears(self, host: SimulatedHost) -> bool:
        return self.alive and self.hosts.get(host.number) is host

    def on_host_lost(self, number: TaskNumber, how: str) -> None:
        self.obey(self.coordinator.on_process_lost(number, how, self.world.scheduler.now_s))

    def on_stop(self) -> None:
        self.obey(self.coordinator.on_stop("asked to", self.world.scheduler.now_s))

    def _tick(self) -> None:
        world = self.world
        if self.alive and not self._is_over:
            self.obey(self.coordinator.on_tick(world.scheduler.now_s))
            world.scheduler.after(0.01, self._tick)

    def obey(self, orders: list[Order]) -> None:
        world = self.world
        for order in orders:
            match order:
                case SendTo(host=id, command=command):
                    self._send(self._places[id], command)
                case Place(process=number, host=id):
                    self._place(self.hosts[number], id)
                case Dismiss(process=number):
                    self._send(self.hosts[number], Shutdown())
                case WriteManifest(manifest=manifest):
                    world.event(f"epoch {manifest.epoch} is being written")
                    world.moment("writing")
                    self._start_writing(manifest)
                case Discard(objects=objects):
                    self._remove(partial(self.store.discard, objects))
                case Note(text=text):
                    world.note(text)
                case EndRun(error=error) if self.is_zombie:
                    world.event(f"driver {self.number}, which was replaced, ends: {error}")
                    self.alive = False
                case EndRun(outcome=Outcome.SETTLED):
                    self._settled()
                case EndRun(outcome=outcome, error=error):
                    world.event(f"the run {outcome.value}")
                    world.outcome = outcome
                    world.history.refused = outcome is Outcome.FAILED and self._all_rotten()
                    if error is not None:
                        world.note(str(error))

    @property
    def _is_over(self) -> bool:
        """The run has ended, and this driver knows."""
        return self.world.outcome is not None and not self.is_zombie

    def _all_rotten(self) -> bool:
        """No checkpoint that one may go back to is whole: the run must stop, not start over."""
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

    def _send(self, host: SimulatedHost, command: Command) -> None:
        host.from_driver.carry(lambda: host.when_free(lambda: host.on_command(command)))

    # Manifests.

    def _start_writing(
        self, manifest: EpochManifest, then: Callable[[StoreError | None], None] | None = None
    ) -> None:
        number = next(self.world.numbers)
        landing = self.store.landing(self.lease, {**manifest.to_json(), "number": number})
        self.world.after(
            0.01, lambda: self._write(manifest, number, landing, then or self._on_written)
        )

    def _write(
        self,
        manifest: EpochManifest,
        number: int,
        landing: Landing,
        then: Callable[[StoreError | None], None],
    ) -> None:
        """One step of it. A dead driver's write may still land, unless its lease is gone."""
        world = self.world
        if not self.alive and world.scheduler.random.random() < 0.5:
            return
        error: StoreError | None = None
        try:
            next(landing)
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
            world.after(0.02, lambda: self._write(manifest, number, landing, then))
            return
        world.after(0.005, lambda: then(error))

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
