"""A whole run in virtual time: driver, hosts, network, disk, and faults from one seed.

Faults come from the seed, or one by one from a scenario: hosts are killed or only thought dead
(and go on as zombies), the driver is killed and replaced, writes are torn, the disk is full for a
while, an answer of the disk is lost, a put times out and lands later, the store raises
an error of a kind of its own, a stored object rots. After the last fault the run must finish with
exactly the right output.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import get_args

from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import HostId, first_generation
from everstream.core.manifest import KEPT_MANIFESTS, EpochManifest
from everstream.core.messages import Command, Report
from everstream.core.orders import (
    Discard,
    EndRun,
    Note,
    Order,
    Outcome,
    Policy,
    SendTo,
    WriteManifest,
)
from everstream.core.plan import Plan, make_plan
from everstream.core.scheme import ALIGNED, Scheme
from everstream.errors import InternalError, LeaseLost, StoreError
from everstream.runtime.pace import Pace
from everstream.simulation.checks import Answers, Liveness, Safety
from everstream.simulation.disk import Operation, SimulatedDisk
from everstream.simulation.faults import Faults, Moment
from everstream.simulation.hosts import SimulatedHost
from everstream.simulation.outside import Outside, OutsideSink
from everstream.simulation.scheduler import Scheduler
from everstream.simulation.shapes import Shape
from everstream.state.landing import Landing
from everstream.state.manifests import entry_of, standing
from everstream.state.store import CheckpointStore, Lease

CHECKPOINT_TIMEOUT_S = 2.0
"""Many times what an epoch takes here, and less than what a slow upload does."""


@dataclass
class History:
    """What a simulated run came to."""

    seed: int
    shape: str
    outcome: Outcome | None = None
    lost: int = 0
    duplicated: int = 0
    misordered: bool = False
    virtual_s: float = 0.0
    steps: int = 0
    epochs: int = 0
    recoveries: int = 0
    refused: bool = False
    """It failed because no checkpoint that was kept could be restored, which is true."""
    forced: int = 0
    """Checkpoints that a protocol demanded before a delivery."""
    lost_frames: int = 0
    """Frames the run itself knows to be lost, because logs died with their hosts."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """What did not hold, of safety, of liveness, or of the core's own rules."""

    @property
    def right(self) -> bool:
        """Finished, with exactly the output of the sequential program, and never unsafe.

        Where every checkpoint is damaged beyond help, it is right to stop.
        """
        return (self.outcome is Outcome.FINISHED or self.refused) and not self.violations


class World:
    """Everything there is in one simulated run."""

    def __init__(
        self,
        seed: int,
        shape: Shape,
        faults: Faults,
        scheme: Scheme = ALIGNED,
        policy: Policy | None = None,
        pace: Callable[[], Pace] = Pace,
    ) -> None:
        self.seed = seed
        self.scheme = scheme
        self.pace = pace
        self.scheduler = Scheduler(seed)
        self.upload_s = self.scheduler.random.choice((0.002, 0.01, 0.03))
        self._slow_uploads = 0
        self.driver_link_s = self.scheduler.random.choice((0.001, 0.01))
        self.disk = SimulatedDisk(self.scheduler.random)
        self.disk.watch = self._on_created
        self.outside = OutsideSink.worlds[seed] = Outside()
        in_memory = scheme.log == "memory"
        self.safety = Safety(
            shape, self.outside, scheme.exactly_once or in_memory, may_lose=in_memory
        )
        self.answers = Answers()
        self.liveness = Liveness()
        self.plan: Plan = make_plan(shape.pipeline(seed), shape.hosts)
        every_s = self.scheduler.random.choice((0.01, 0.05))
        self.policy = policy or Policy(
            every_s=every_s, max_restarts=1000, checkpoint_timeout_s=CHECKPOINT_TIMEOUT_S
        )
        self.hosts: dict[HostId, SimulatedHost] = {}
        """The living attempts of the living driver; whoever is not in here is a zombie."""
        self.attempts: Counter[HostId] = Counter()
        self.drivers = 0
        self._up = 0
        """The last driver that has taken over the store."""
        self.outcome: Outcome | None = None
        self.history = History(seed, shape.name)
        self.watchers: list[Callable[[str], None]] = []
        """Told of everything that happens, as text."""
        self.coordinator: Coordinator
        self.store: CheckpointStore
        self.lease: Lease
        self._start_driver()
        for at_s, fault in faults.timed(self.scheduler.random):
            self.scheduler.at(at_s, getattr(self, fault))
        self._ambushes = set(faults.lying_in_ambush(self.scheduler.random))
        self._moments: Counter[Moment] = Counter()
        self._numbers = count(1)

    def run(self) -> History:
        """Until the run ends, one way or another."""
        history = self.history
        try:
            self._run()
        except InternalError as error:
            history.violations.append(f"a rule of the core: {error}")
        if self.outcome is not None:
            history.recoveries += len(self.coordinator.recoveries)
            history.forced += self.coordinator.tally.forced
        history.lost_frames = self.coordinator.lost_frames
        self.safety.at_end(self.outcome, history.lost_frames)
        history.outcome = self.outcome
        history.virtual_s = self.scheduler.now_s
        history.steps = self.scheduler.steps
        history.lost, history.duplicated = self.safety.lost, self.safety.duplicated
        history.misordered = self.safety.misordered
        history.violations += self.safety.violations + self.answers.violations
        return history

    def _run(self) -> None:
        while self.outcome is None or any(host.alive for host in self.hosts.values()):
            unsafe = self.safety.violations or self.answers.violations
            if unsafe or not self.scheduler.step():
                return
            violation = self.liveness.violation(self.scheduler.steps)
            if violation is not None:
                self.history.violations.append(violation)
                return

    # For scenarios.

    def event(self, text: str) -> None:
        for watch in self.watchers:
            watch(text)

    def when(self, text: str, action: Callable[[], None]) -> None:
        """Once, right after the first thing that happens whose text begins like this."""

        def watch(happened: str) -> None:
            if happened.startswith(text) and watch in self.watchers:
                self.watchers.remove(watch)
                self.scheduler.after(0.0, action)

        self.watchers.append(watch)

    def stop(self) -> None:
        """Somebody asks the run to stop with a checkpoint; while no driver is up, nobody hears it."""
        if self.outcome is not None or self._up != self.drivers:
            return
        self.event("stop requested")
        self._obey(self.coordinator.on_stop("asked to", self.scheduler.now_s))

    def resume(self) -> None:
        """Run again on the same store, after a run that has ended."""
        self.outcome = None
        self.liveness.fault(self.scheduler.steps)
        self.hosts = {}
        self._start_driver()

    # The driver.

    def _start_driver(self) -> None:
        self.drivers += 1
        self._take_over(self.drivers)

    def _take_over(self, driver: int) -> None:
        if driver != self.drivers:
            return
        self.store = CheckpointStore(self.disk)
        self.store.on_damage = self._note
        try:
            self.lease = self.store.acquire_lease(f"driver-{driver}")
            manifests = [EpochManifest.from_json(found.body) for found in self.store.manifests()]
            self.store.sweep(self.lease)
        except StoreError:
            self._after(0.05, lambda: self._take_over(driver))
            return
        self._up = driver
        self.event(f"driver {driver} starts")
        self.coordinator = self.scheme.coordinator(
            self.plan, self.policy, first_generation(self.lease.number), manifests[:KEPT_MANIFESTS]
        )
        self._tick(driver)
        for host in range(len(self.plan.hosts)):
            self._start_host(HostId(host))

    def _start_host(self, host: HostId) -> None:
        """As Spark does: some time after the task was lost, it runs again."""
        driver = self.drivers

        def start() -> None:
            if driver != self.drivers or self.outcome is not None:
                return
            self.attempts[host] += 1
            started = SimulatedHost(self, host, self.attempts[host], driver, self.scheme)
            self.hosts[host] = started
            started.to_driver.carry(lambda: self._on_hello(started))

        self._after(0.05, start)

    def _on_hello(self, host: SimulatedHost) -> None:
        if self._is_ours(host):
            self.event(f"host {host.id} joins")
            self._obey(self.coordinator.on_host_joined(host.id, host, self.scheduler.now_s))

    def on_report(self, host: SimulatedHost, report: Report) -> None:
        """Reports of zombies are dropped, as the driver drops those of earlier attempts."""
        if self._is_ours(host):
            self._obey(self.coordinator.on_report(report, self.scheduler.now_s))

    def _is_ours(self, host: SimulatedHost) -> bool:
        return host.driver == self.drivers and self.hosts.get(host.id) is host

    def _tick(self, driver: int) -> None:
        if driver == self.drivers and self.outcome is None:
            self._obey(self.coordinator.on_tick(self.scheduler.now_s))
            self.scheduler.after(0.01, lambda: self._tick(driver))

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case SendTo(host=id, command=command):
                    self._send(self.hosts[id], command)
                case WriteManifest(manifest=manifest):
                    self.event(f"epoch {manifest.epoch} is being written")
                    self._moment("writing")
                    self._start_writing(manifest)
                case Discard(objects=objects):
                    self._remove(partial(self.store.discard, objects))
                case Note(text=text):
                    self.history.notes.append(f"{self.scheduler.now_s:8.4f} {text}")
                case EndRun(outcome=outcome, error=error):
                    self.event(f"the run {outcome.value}")
                    self.outcome = outcome
                    self.history.refused = outcome is Outcome.FAILED and self._all_rotten()
                    if error is not None:
                        self.history.notes.append(f"{self.scheduler.now_s:8.4f} {error}")

    def _all_rotten(self) -> bool:
        """No checkpoint that one may go back to is whole: the run must stop, not start over."""
        self.disk.odd.clear()
        kept = standing(self.store.manifests())
        return bool(kept) and all(
            any(self.store.problem_of(ref) for ref in manifest.objects) for manifest in kept
        )

    def _send(self, host: SimulatedHost, command: Command) -> None:
        host.from_driver.carry(lambda: host.when_free(lambda: host.on_command(command)))

    def _start_writing(self, manifest: EpochManifest) -> None:
        number, driver = next(self._numbers), self.drivers
        landing = self.store.landing(self.lease, {**manifest.to_json(), "number": number})
        self._after(0.01, lambda: self._write(manifest, number, landing, driver))

    def _write(self, manifest: EpochManifest, number: int, landing: Landing, driver: int) -> None:
        """One step of it. A dead driver's write may still land, unless its lease is gone."""
        if driver != self.drivers and self.scheduler.random.random() < 0.5:
            return
        error: StoreError | None = None
        try:
            next(landing)
        except StopIteration:
            self.answers.on_answer(number, landed=True)
            self._stable(manifest)
        except LeaseLost as lost:
            error = lost
        except StoreError as failure:
            self.answers.on_answer(number, landed=False)
            self.event(f"epoch {manifest.epoch} is given up")
            self._moment("given up")
            error = failure
        else:
            self._after(0.02, lambda: self._write(manifest, number, landing, driver))
            return
        self._after(0.005, lambda: self._on_written(error, driver))

    def _stable(self, manifest: EpochManifest) -> None:
        self.history.epochs += 1
        self.event(f"epoch {manifest.epoch} is stable")
        self._moment("stable")
        if {record.final for record in manifest.records.values()} == {True, False}:
            self._moment("ending")

    def _on_created(self, path: str, data: bytes) -> None:
        """An entry of the log is there, whether its writer knows it or not."""
        entry = entry_of(0, data)
        if entry.kind != "checkpoint":
            return
        if entry.lease < self.lease.number:
            raise InternalError("a replaced driver made an epoch stable")
        if "number" in entry.body:  # otherwise somebody went back by hand
            self.answers.on_landed(entry.body["number"])
        self.safety.on_stable(EpochManifest.from_json(entry.body), self.scheme.log != "none")

    def _on_written(self, error: StoreError | None, driver: int) -> None:
        if driver != self.drivers or self.outcome is not None:
            return
        now_s = self.scheduler.now_s
        if error is not None:
            self._obey(self.coordinator.on_manifest_failed(error, now_s))
        else:
            self._obey(self.coordinator.on_manifest_written(now_s))
            objects = not self.coordinator.names_what_goes
            self._remove(partial(self.store.prune, KEPT_MANIFESTS, objects=objects))

    def _note(self, text: str) -> None:
        self.history.notes.append(f"{self.scheduler.now_s:8.4f} {text}")

    def _remove(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoreError as error:
            # As on Spark: what was not removed does no harm, and if the lease is lost the next
            # manifest will tell the coordinator.
            self._note(str(error))

    def _after(self, typical_s: float, action: Callable[[], None]) -> None:
        self.scheduler.after(self.scheduler.jitter_s(typical_s), action)

    # Faults.

    def _fault(self, text: str) -> None:
        self.event(text)
        self.liveness.fault(self.scheduler.steps)
        self.history.faults.append(f"{self.scheduler.now_s:8.4f} {text}")

    def _moment(self, moment: Moment) -> None:
        self._moments[moment] += 1
        if (moment, self._moments[moment]) in self._ambushes:
            self._after(0.005, self.kill_driver if moment == "late" else self.kill_host)

    def _choose_host(self, id: int | None) -> SimulatedHost | None:
        alive = [h for h in self.hosts.values() if h.alive and (id is None or h.id == id)]
        return self.scheduler.random.choice(alive) if alive and self.outcome is None else None

    def kill_host(self, id: int | None = None) -> None:
        host = self._choose_host(id)
        if host is not None:
            self._fault(f"kill host {host.id}")
            host.die()
            self._replace(host, "killed")

    def lose_host(self, id: int | None = None) -> None:
        """Silent for too long: replaced, but it lives on as a zombie for a while."""
        host = self._choose_host(id)
        if host is not None:
            self._fault(f"host {host.id} is thought dead")
            self._after(0.2, host.die)
            self._replace(host, "silent")

    def _replace(self, host: SimulatedHost, how: str) -> None:
        self._start_host(host.id)
        if self.scheduler.random.random() < 0.7:
            # Otherwise the driver learns of it only when the next attempt says hello.
            self._obey(self.coordinator.on_host_lost(host.id, how, self.scheduler.now_s))

    def kill_driver(self) -> None:
        if self.outcome is not None:
            return
        self._fault("kill the driver")
        for host in self.hosts.values():
            # Hosts notice after a while; until then they are zombies.
            self._after(0.05, host.die)
        self.hosts = {}
        self.drivers += 1
        driver = self.drivers
        self._after(0.02, lambda: self._take_over(driver))

    def fill_disk(self, for_s: float | None = None) -> None:
        self._fault("disk full")
        self.disk.full = True
        delay_s = self.scheduler.jitter_s(0.1) if for_s is None else for_s
        self.scheduler.after(delay_s, self._empty_disk)

    def _empty_disk(self) -> None:
        self._fault("disk has room again")
        self.disk.full = False

    def lose_answer(self) -> None:
        """The next manifest gets there, but the disk says that it did not."""
        self._fault("the answer to the next manifest gets lost")
        self.disk.lose_answer = True

    def delay_manifest(self, for_s: float | None = None) -> None:
        """The next entry of the log times out, and comes when nobody expects it any more."""
        self._delay("manifests/", for_s)

    def delay_object(self, for_s: float | None = None) -> None:
        self._delay("objects/", for_s)

    def _delay(self, prefix: str, for_s: float | None) -> None:
        self._fault(f"the next put into {prefix} times out")

        def later(path: str, put: Callable[[], None]) -> None:
            typical_s = self.scheduler.random.choice((0.01, 0.05, 0.3))
            delay_s = self.scheduler.jitter_s(typical_s) if for_s is None else for_s
            self._fault(f"{path} times out")
            self.scheduler.after(delay_s, lambda: self._land(path, put))

        self.disk.delayed[prefix] = later

    def _land(self, path: str, put: Callable[[], None]) -> None:
        self._fault(f"{path} arrives late")
        put()
        self._moment("late")

    def slow_upload(self) -> None:
        """The next checkpoint that a shard saves gets there, but late."""
        self._fault("the next upload is slow")
        self._slow_uploads += 1

    def next_upload_s(self) -> float:
        """How long the next upload takes."""
        if not self._slow_uploads:
            return self.scheduler.jitter_s(self.upload_s)
        self._slow_uploads -= 1
        slow_s = 2 * CHECKPOINT_TIMEOUT_S
        self.scheduler.after(slow_s, lambda: self._fault("the slow upload ends"))
        return slow_s

    def fail_oddly(self) -> None:
        """The next operation of one kind raises what no caller has ever heard of."""
        operation = self.scheduler.random.choice(get_args(Operation))
        self._fault(f"the next {operation} fails oddly")
        self.disk.odd[operation] += 1

    def rot_object(self, path: str | None = None) -> None:
        """An object rots, often its copy as well; where a path is given, always.

        Often one of the newest: those only one checkpoint needs, so there is one to go back to.
        """
        paths = [path] if path is not None else self.disk.list("objects/")
        objects = [path for path in paths if self.disk.files[path]]
        if objects:
            by_number = sorted(objects, key=lambda path: path.rpartition("/")[2])
            among = by_number[-3:] if self.scheduler.random.random() < 0.5 else objects
            chosen = self.scheduler.random.choice(among)
            self._fault(f"rot {chosen}")
            self.disk.rot(chosen)
            copy = chosen.replace("objects/", "copies/", 1)
            if copy in self.disk.files and (path or self.scheduler.random.random() < 0.7):
                self._fault(f"rot {copy}")
                self.disk.rot(copy)
