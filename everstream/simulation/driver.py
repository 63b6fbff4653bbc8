"""A simulated driver: takes over the store, starts hosts, obeys its coordinator, writes manifests.

What a driver has under way does not stop when it dies: a write may still land, a message arrive.
So each driver is an object of its own, and asks whether it is still the living one.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import HostId, first_generation
from everstream.core.manifest import KEPT_MANIFESTS, EpochManifest
from everstream.core.messages import Command, Report
from everstream.core.orders import Discard, EndRun, Note, Order, Outcome, SendTo, WriteManifest
from everstream.errors import LeaseLost, StoreError
from everstream.simulation.hosts import SimulatedHost
from everstream.state.landing import Landing
from everstream.state.manifests import standing
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

    @property
    def alive(self) -> bool:
        return self.world.driver is self

    def take_over(self) -> None:
        """Get the lease and what the store holds; as long as the store fails, try again."""
        world = self.world
        if not self.alive:
            return
        self.store = world.store = CheckpointStore(world.disk)
        self.store.on_damage = world.note
        try:
            self.lease = world.lease = self.store.acquire_lease(f"driver-{self.number}")
            manifests = [EpochManifest.from_json(found.body) for found in self.store.manifests()]
            self.store.sweep(self.lease)
        except StoreError:
            world.after(0.05, self.take_over)
            return
        self.up = True
        world.event(f"driver {self.number} starts")
        generation = first_generation(self.lease.number)
        self.coordinator = world.coordinator = world.scheme.coordinator(
            world.plan, world.policy, generation, manifests[:KEPT_MANIFESTS]
        )
        self._tick()
        for host in range(len(world.plan.hosts)):
            self.start_host(HostId(host))

    def start_host(self, host: HostId) -> None:
        """As Spark does: some time after the task was lost, it runs again."""
        world = self.world

        def start() -> None:
            if not self.alive or world.outcome is not None:
                return
            world.attempts[host] += 1
            started = SimulatedHost(world, host, world.attempts[host], self, world.scheme)
            if world.tuning.version:
                started.on_tune(world.tuning)
            world.hosts[host] = started
            world.everybody.append(started)
            started.to_driver.carry(lambda: self._on_hello(started))

        world.after(0.05, start)

    def _on_hello(self, host: SimulatedHost) -> None:
        if self._hears(host):
            self.world.event(f"host {host.id} joins")
            self.obey(self.coordinator.on_host_joined(host.id, host, self.world.scheduler.now_s))

    def on_report(self, host: SimulatedHost, report: Report) -> None:
        """Reports of zombies are dropped, as the driver drops those of earlier attempts."""
        if self._hears(host):
            self.obey(self.coordinator.on_report(report, self.world.scheduler.now_s))

    def _hears(self, host: SimulatedHost) -> bool:
        return self.alive and self.world.hosts.get(host.id) is host

    def on_host_lost(self, host: HostId, how: str) -> None:
        self.obey(self.coordinator.on_host_lost(host, how, self.world.scheduler.now_s))

    def on_stop(self) -> None:
        self.obey(self.coordinator.on_stop("asked to", self.world.scheduler.now_s))

    def _tick(self) -> None:
        world = self.world
        if self.alive and world.outcome is None:
            self.obey(self.coordinator.on_tick(world.scheduler.now_s))
            world.scheduler.after(0.01, self._tick)

    def obey(self, orders: list[Order]) -> None:
        world = self.world
        for order in orders:
            match order:
                case SendTo(host=id, command=command):
                    self._send(world.hosts[id], command)
                case WriteManifest(manifest=manifest):
                    world.event(f"epoch {manifest.epoch} is being written")
                    world.moment("writing")
                    self._start_writing(manifest)
                case Discard(objects=objects):
                    self._remove(partial(self.store.discard, objects))
                case Note(text=text):
                    world.note(text)
                case EndRun(outcome=outcome, error=error):
                    world.event(f"the run {outcome.value}")
                    world.outcome = outcome
                    world.history.refused = outcome is Outcome.FAILED and self._all_rotten()
                    if error is not None:
                        world.note(str(error))

    def _all_rotten(self) -> bool:
        """No checkpoint that one may go back to is whole: the run must stop, not start over."""
        self.world.disk.odd.clear()
        kept = standing(self.store.manifests())
        return bool(kept) and all(
            any(self.store.problem_of(ref) for ref in manifest.objects) for manifest in kept
        )

    def _send(self, host: SimulatedHost, command: Command) -> None:
        host.from_driver.carry(lambda: host.when_free(lambda: host.on_command(command)))

    # Manifests.

    def _start_writing(self, manifest: EpochManifest) -> None:
        number = next(self.world.numbers)
        landing = self.store.landing(self.lease, {**manifest.to_json(), "number": number})
        self.world.after(0.01, lambda: self._write(manifest, number, landing))

    def _write(self, manifest: EpochManifest, number: int, landing: Landing) -> None:
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
            world.after(0.02, lambda: self._write(manifest, number, landing))
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
        if not self.alive or self.world.outcome is not None:
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
