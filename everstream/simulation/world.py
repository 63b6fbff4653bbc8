"""A whole run in virtual time: driver, hosts, network, disk, and faults from one seed.

Faults come from the seed: hosts are killed or only thought dead (and go on as zombies), the
driver is killed and replaced, writes are torn, the disk is full for a while, a stored object
rots. After the last fault the run must finish with exactly the right output.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from everstream.core.coordinator import (
    Coordinator,
    EndRun,
    Note,
    Order,
    Outcome,
    Policy,
    SendTo,
    WriteManifest,
)
from everstream.core.ids import HostId, first_generation
from everstream.core.manifest import EpochManifest
from everstream.core.plan import Plan, make_plan
from everstream.core.protocols.aligned import Aligned
from everstream.core.protocols.base import ShardProtocol
from everstream.errors import InternalError, LeaseLost, StoreError
from everstream.simulation.disk import DiskFull, SimulatedDisk
from everstream.simulation.hosts import SimulatedHost
from everstream.simulation.outside import Outside, OutsideSink
from everstream.simulation.scheduler import Scheduler
from everstream.simulation.shapes import Shape
from everstream.state.store import CheckpointStore, Lease

LONGEST_RUN_STEPS = 200_000


@dataclass(frozen=True)
class Faults:
    """How much goes wrong. Times in virtual seconds; the chances come from the seed."""

    host_kills: int = 3
    zombies: int = 1
    driver_kills: int = 1
    full_disks: int = 1
    rotten_objects: int = 1
    until_s: float = 0.8
    """No fault is injected after this time: from then on the run must make progress."""


@dataclass
class History:
    """What a simulated run came to."""

    seed: int
    outcome: Outcome | None
    lost: int
    duplicated: int
    misordered: bool
    virtual_s: float
    steps: int
    epochs: int
    recoveries: int
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        exact = not self.lost and not self.duplicated and not self.misordered
        return self.outcome is Outcome.FINISHED and exact


class World:
    """Everything there is in one simulated run."""

    def __init__(
        self,
        seed: int,
        shape: Shape,
        faults: Faults,
        protocol: type[ShardProtocol] = Aligned,
        policy: Policy | None = None,
    ) -> None:
        self.seed = seed
        self.shape = shape
        self.protocol = protocol
        self.scheduler = Scheduler(seed)
        self.disk = SimulatedDisk(self.scheduler.random)
        self.store = CheckpointStore(self.disk)
        self.outside = OutsideSink.worlds[seed] = Outside()
        self.plan: Plan = make_plan(shape.pipeline(seed), shape.hosts)
        self.policy = policy or Policy(every_s=0.05, max_restarts=1000)
        self.hosts: dict[HostId, SimulatedHost] = {}
        self.attempts: Counter[HostId] = Counter()
        self.drivers = 0
        self.outcome: Outcome | None = None
        self.history = History(seed, None, 0, 0, False, 0.0, 0, 0, 0)
        self.coordinator: Coordinator
        self.lease: Lease
        self._start_driver()
        self._plan_faults(faults)

    def run(self) -> History:
        """Until the run ends; the checkers look at the output at the end."""
        while self.outcome is None:
            if self.scheduler.steps > LONGEST_RUN_STEPS or not self.scheduler.step():
                break
        history = self.history
        history.outcome = self.outcome
        history.virtual_s = self.scheduler.now_s
        history.steps = self.scheduler.steps
        for sink, expected in self.shape.expected().items():
            shown = self.outside.counts(sink)
            history.lost += sum((Counter(expected) - shown).values())
            history.duplicated += sum((shown - Counter(expected)).values())
            if self.shape.ordered:
                history.misordered |= self.outside.output(sink) != expected
        del OutsideSink.worlds[self.seed]
        return history

    # The driver.

    def _start_driver(self) -> None:
        self.drivers += 1
        try:
            self.lease = self.store.acquire_lease(f"driver-{self.drivers}")
        except DiskFull:
            self.scheduler.after(self.scheduler.jitter_s(0.05), self._start_driver)
            return
        manifests = [EpochManifest.from_json(found.body) for found in self.store.manifests()]
        self.store.sweep(self.lease)
        self.coordinator = Coordinator(
            self.plan, self.policy, first_generation(self.lease.number), manifests[:3]
        )
        self._tick(self.drivers)
        for host in range(len(self.plan.hosts)):
            self._start_host(HostId(host))

    def _start_host(self, host: HostId) -> None:
        """As Spark does: some time after the task was lost, it runs again."""
        driver = self.drivers

        def start() -> None:
            if driver != self.drivers or self.outcome is not None:
                return
            self.attempts[host] += 1
            started = SimulatedHost(self, host, self.attempts[host], driver, self.protocol)
            self.hosts[host] = started
            started.to_driver.carry(lambda: self._on_hello(started))

        self.scheduler.after(self.scheduler.jitter_s(0.05), start)

    def _on_hello(self, host: SimulatedHost) -> None:
        if host.driver == self.drivers and self.hosts.get(host.id) is host:
            self._obey(self.coordinator.on_host_joined(host.id, host, self.scheduler.now_s))

    def on_report(self, host: SimulatedHost, report: Any) -> None:
        """Reports of zombies are dropped, as the driver drops those of earlier attempts."""
        if host.driver == self.drivers and self.hosts.get(host.id) is host:
            self._obey(self.coordinator.on_report(report, self.scheduler.now_s))

    def _tick(self, driver: int) -> None:
        if driver == self.drivers and self.outcome is None:
            self._obey(self.coordinator.on_tick(self.scheduler.now_s))
            self.scheduler.after(0.01, lambda: self._tick(driver))

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case SendTo(host=id, command=command):
                    host = self.hosts[id]
                    host.from_driver.carry(
                        lambda h=host, c=command: h.on_command(c) if h.alive else None  # type: ignore[misc]
                    )
                case WriteManifest(manifest=manifest):
                    driver, lease = self.drivers, self.lease
                    self.scheduler.after(
                        self.scheduler.jitter_s(0.01),
                        lambda m=manifest, d=driver, own=lease: self._write(m, d, own),  # type: ignore[misc]
                    )
                case Note(text=text):
                    self.history.notes.append(f"{self.scheduler.now_s:8.4f} {text}")
                case EndRun(outcome=outcome, error=error):
                    self.outcome = outcome
                    if error is not None:
                        self.history.notes.append(str(error))
                    self.history.recoveries = len(self.coordinator.book.reports)

    def _write(self, manifest: EpochManifest, driver: int, lease: Lease) -> None:
        """A dead driver's write may still land, unless its lease is gone."""
        if driver != self.drivers and self.scheduler.random.random() < 0.5:
            return
        try:
            self.store.append_manifest(lease, manifest.to_json())
        except (StoreError, OSError) as error:
            if driver == self.drivers and self.lease is lease:
                failure = error if isinstance(error, StoreError) else StoreError(str(error))
                self._obey(self.coordinator.on_manifest_failed(failure, self.scheduler.now_s))
            elif not isinstance(error, LeaseLost):
                raise InternalError(f"a replaced driver wrote: {error}") from error
            return
        if driver != self.drivers:
            raise InternalError("a replaced driver made an epoch stable")
        self.history.epochs += 1
        self._obey(self.coordinator.on_manifest_written(self.scheduler.now_s))
        self.store.prune(keep=3)

    # Faults.

    def _plan_faults(self, faults: Faults) -> None:
        chance = self.scheduler.random
        for count, fault in (
            (faults.host_kills, self._kill_host),
            (faults.zombies, self._lose_host),
            (faults.driver_kills, self._kill_driver),
            (faults.full_disks, self._fill_disk),
            (faults.rotten_objects, self._rot_object),
        ):
            for _ in range(chance.randint(0, count)):
                self.scheduler.at(chance.uniform(0, faults.until_s), fault)

    def _fault(self, text: str) -> None:
        self.history.faults.append(f"{self.scheduler.now_s:8.4f} {text}")

    def _kill_host(self) -> None:
        alive = [host for host in self.hosts.values() if host.alive]
        if alive and self.outcome is None:
            host = self.scheduler.random.choice(alive)
            self._fault(f"kill host {host.id}")
            host.die()
            self._replace(host, "killed")

    def _lose_host(self) -> None:
        """Silent for too long: replaced, but it lives on as a zombie for a while."""
        alive = [host for host in self.hosts.values() if host.alive]
        if alive and self.outcome is None:
            host = self.scheduler.random.choice(alive)
            self._fault(f"host {host.id} is thought dead")
            self.scheduler.after(self.scheduler.jitter_s(0.2), host.die)
            self._replace(host, "silent")

    def _replace(self, host: SimulatedHost, how: str) -> None:
        self._start_host(host.id)
        if self.scheduler.random.random() < 0.7:
            # Otherwise the driver learns of it only when the next attempt says hello.
            self._obey(self.coordinator.on_host_lost(host.id, how, self.scheduler.now_s))

    def _kill_driver(self) -> None:
        if self.outcome is not None:
            return
        self._fault("kill the driver")
        for host in self.hosts.values():
            # Hosts notice after a while; until then they are zombies.
            self.scheduler.after(self.scheduler.jitter_s(0.05), host.die)
        self.hosts = {}
        self._start_driver()

    def _fill_disk(self) -> None:
        self._fault("disk full")
        self.disk.full = True
        self.scheduler.after(self.scheduler.jitter_s(0.1), self._empty_disk)

    def _empty_disk(self) -> None:
        self.disk.full = False

    def _rot_object(self) -> None:
        objects = self.disk.list("objects/")
        if objects:
            path = self.scheduler.random.choice(objects)
            self._fault(f"rot {path}")
            self.disk.rot(path)
