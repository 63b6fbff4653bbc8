"""A whole run in virtual time: driver, workers, network, disk, and faults from one seed.

Faults come from the seed, or one by one from a scenario. Processes are killed, mistaken for dead
(and continue as zombies), or lose their power; writes are torn, late, refused or rot; operators,
sinks and the store raise errors of every kind; clocks jump. After the last fault the run must
finish with exactly the right output, or stop and report that data it needs is damaged.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping
from itertools import count
from typing import get_args

from everstream.core.checkpointing.manifest import EpochManifest, manifests_in
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import TaskNumber
from everstream.core.orders import Outcome, Policy
from everstream.core.plan import Plan, make_plan, rescaled
from everstream.core.scheme import ALIGNED, Scheme
from everstream.core.upgrade.compatibility import NO_OVERRIDES, GoingOn, UpgradeOverrides, going_on
from everstream.errors import InternalError
from everstream.pipeline.keyed_state.backend_choice import placed
from everstream.pipeline.operator import StateKind
from everstream.pipeline.tuning import Tuning, merged, resolved, tunable_in
from everstream.runtime.pace import Pace
from everstream.simulation.checks import Answers, Safety
from everstream.simulation.disk import Operation, SimulatedDisk
from everstream.simulation.driver import SimulatedDriver
from everstream.simulation.faults import OPERATORS, Faults, raise_one
from everstream.simulation.happenings import Happenings, History, Scheduler
from everstream.simulation.outside import Outside, OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.workers import SimulatedWorker
from everstream.state.manifests import FOLDER, entry_of
from everstream.state.store import CheckpointStore, Lease

CHECKPOINT_TIMEOUT_S = 2.0
"""Many times what an epoch takes here, and less than what a slow upload does."""
SECONDS_SINCE_1970 = 1e9
"""When a simulated run begins, by clocks that were not set."""
CALL_S = 0.02
"""How long a call of `map_async` takes on average."""
PACK_AFTER_S = 0.3
"""Longer than Spark usually takes to restart a task."""


class World(Happenings):
    """Everything in one simulated run."""

    coordinator: Coordinator
    """The coordinator of the last driver that was up."""
    store: CheckpointStore
    lease: Lease
    """The newest lease."""
    driver: SimulatedDriver
    fixed_time_s: float | None = None
    """The time by all clocks, if only a test lets it pass."""

    def __init__(
        self,
        seed: int,
        shape: Shape,
        faults: Faults,
        scheme: Scheme = ALIGNED,
        policy: Policy | None = None,
        pace: Callable[[], Pace] = Pace,
        spares: int = 0,
        state: StateKind | None = None,
        scratch: str = "",
        number: int | None = None,
        only: Container[int] | None = None,
        latency_s: float = 0.005,
    ) -> None:
        """state, scratch: where operators keep their state, and the folder for it if on disk.

        number: the number by which sinks find this world; the seed, unless several worlds of one
        seed exist at once. only: which of the faults that the seed selects happen; None for all.
        latency_s: how long records may wait for others, as in a run.
        """
        super().__init__(Scheduler(seed), History(seed, shape.name))
        chance = self.scheduler.random
        self.seed = seed
        self.scheme = scheme
        self.pace = pace
        self.latency_s = latency_s
        self.upload_s = chance.choice((0.002, 0.01, 0.03))
        self.driver_link_s = chance.choice((0.001, 0.01))
        self.disk = SimulatedDisk(chance)
        self.disk.watch = self._on_created
        number = seed if number is None else number
        self.outside = OutsideSink.worlds[number] = Outside(chance)
        in_memory = scheme.log == "memory"
        self.safety = Safety(
            shape, self.outside, scheme.exactly_once or in_memory, may_lose=in_memory
        )
        self.answers = Answers()
        self.shape = shape
        self.scratch = scratch
        pipeline = shape.pipeline(number)
        placing = placed(pipeline.graph, state)
        self.plan: Plan = make_plan(pipeline.with_nodes(placing), shape.workers)
        """The present plan."""
        self.wanted = self.plan
        """The requested plan: the next driver knows it, too."""
        every_s = chance.choice((0.01, 0.05))
        self.policy = policy or Policy(
            every_s=every_s, max_restarts=1000, checkpoint_timeout_s=CHECKPOINT_TIMEOUT_S
        )
        self.tuning = Tuning()
        self.spares = spares
        self.lost_slots: set[TaskNumber] = set()
        """Tasks for which Spark has no slot."""
        self.pack_after_s = PACK_AFTER_S if faults.lost_slots else math.inf
        self.everybody: list[SimulatedWorker] = []
        """All workers that were ever started."""
        self.attempts: Counter[TaskNumber] = Counter()
        processes = map(TaskNumber, range(len(self.plan.workers) + spares))
        self.clock_ahead_s = dict.fromkeys(processes, 0.0)
        """Process -> how far the clock of its machine is ahead of the time."""
        self._slow_uploads = 0
        self._hung_uploads = 0
        self.outside.wall_s = lambda: self.wall_s(TaskNumber(0))
        self.operator_trouble: list[str] = []
        self.both_copies = faults.both_copies
        self.drivers = 0
        self.numbers = count(1)
        """Tells manifests apart."""
        self._start_driver()
        self._inject(faults, only)

    def _inject(self, faults: Faults, only: Container[int] | None) -> None:
        """All faults are drawn, so that those that happen do not depend on the others' absence."""
        chance = self.scheduler.random
        timed, ambushes = list(faults.timed(chance)), list(faults.lying_in_ambush(chance))
        self.faults_drawn = len(timed) + len(ambushes)
        for number, (at_s, fault) in enumerate(timed):
            if only is None or number in only:
                self.scheduler.at(at_s, getattr(self, fault))
        for number, (moment, epoch) in enumerate(ambushes, len(timed)):
            if only is None or number in only:
                kill = self.kill_driver if moment == "late" else self.kill_worker
                self.ambushes[moment, epoch] = kill

    @property
    def workers(self) -> dict[TaskNumber, SimulatedWorker]:
        """The living attempts of the present driver; any other attempt is a zombie."""
        return self.driver.workers

    def run(self) -> History:
        """Run until the end, successful or not."""
        history = self.history
        try:
            self._run()
        except InternalError as error:
            history.violations.append(f"a rule of the core: {error}")
        if self.outcome is not None:
            history.recoveries += len(self.coordinator.recoveries)
            history.forced += self.coordinator.checkpoint_stats.forced
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
        while self.outcome is None or any(worker.alive for worker in self.workers.values()):
            unsafe = self.safety.violations or self.answers.violations
            if unsafe or not self.scheduler.step():
                return
            if self.outside.refused and self.outcome is None:
                # It would retry this a few times, and stop.
                self.outcome, self.history.refused = Outcome.FAILED, True
                return
            violation = self.liveness.violation(self.scheduler.steps)
            if violation is not None:
                self.history.violations.append(violation)
                return

    def stop(self) -> None:
        """Ask the run to stop with a checkpoint; without effect while no driver is up."""
        if self.outcome is None and self.driver.up:
            self.event("stop requested")
            self.driver.on_stop()

    def rescale(self) -> None:
        """Request other numbers of shards during the run."""
        if self.outcome is not None or not self.driver.up or self.coordinator.is_quiescing:
            return
        chance = self.scheduler.random
        names = [name for name in self.plan.graph.nodes if name not in self.shape.fixed]
        chosen = {name: chance.randint(1, 4) for name in names if chance.random() < 0.5}
        before = {n: self.plan.chains[c].shards for n, c in self.plan.chain_of.items()}
        self.fault(f"rescale to {chosen}")
        self.wanted = rescaled(self.wanted, {**before, **chosen}, self.plan.key_groups)

    def resume(self) -> None:
        """Run again on the same store, after a run that has ended."""
        self.outcome = self.error = None
        self.liveness.fault(self.scheduler.steps)
        self._start_driver()

    def change(self, plan: Plan, overrides: UpgradeOverrides = NO_OVERRIDES) -> GoingOn:
        """Let the next driver run this plan, by the rules for upgrades; no driver may be alive.

        Raises a UserError, and changes nothing, if the plan cannot resume from the store.
        """
        store = CheckpointStore(self.disk)
        found = going_on(manifests_in(store), plan, self.scheme.log, overrides)
        if found.wished is not None:
            lease = self.lease = store.acquire_lease("the next driver")
            store.append_manifest(lease, found.wished.to_json())
        found.tell(plan)
        self.plan = self.wanted = plan
        for process in range(len(plan.workers) + self.spares):
            self.clock_ahead_s.setdefault(TaskNumber(process), 0.0)
        return found

    def _start_driver(self) -> None:
        self.new_driver().take_over()

    def new_driver(self) -> SimulatedDriver:
        """The next driver, which has not taken over yet; the last is dead or was replaced."""
        self.drivers += 1
        self.driver = SimulatedDriver(self, self.drivers)
        return self.driver

    def _on_created(self, path: str, data: bytes) -> None:
        """An entry of the log has been created, whether its writer knows it or not."""
        entry = entry_of(0, data)
        if entry.kind != "checkpoint":
            return
        if entry.lease < self.lease.number:
            raise InternalError("a replaced driver made an epoch stable")
        if "number" in entry.body:  # otherwise it is a manual rewind
            self.answers.on_landed(entry.body["number"])
        self.safety.on_stable(EpochManifest.from_json(entry.body), self.scheme.log != "none")

    def tune(self, wishes: Mapping[str, str]) -> None:
        """Change settings; workers that start later receive them, too."""
        changes = resolved(wishes, tunable_in(self.plan.graph))
        settings = merged(self.tuning.settings, changes)
        self.tuning = Tuning(self.tuning.version + 1, settings)
        for worker in self.workers.values():
            worker.on_tune(self.tuning)

    # Faults of processes. Without an argument, chance decides which one a fault hits.

    def _choose_worker(self, id: int | None) -> SimulatedWorker | None:
        alive = [h for h in self.workers.values() if h.alive and (id is None or h.id == id)]
        return self.scheduler.random.choice(alive) if alive and self.outcome is None else None

    def kill_worker(self, id: int | None = None) -> None:
        worker = self._choose_worker(id)
        if worker is not None:
            self.fault(f"kill {_name(worker)}")
            worker.die()
            self._replace(worker, "killed")

    def lose_worker(self, id: int | None = None) -> None:
        """Silent for too long: replaced, but it survives as a zombie for a while."""
        worker = self._choose_worker(id)
        if worker is not None:
            self.fault(f"{_name(worker)} is thought dead")
            self.after(0.2, worker.die)
            self._replace(worker, "silent")

    def _replace(self, worker: SimulatedWorker, how: str) -> None:
        self.driver.start_worker(worker.number)
        if self.scheduler.random.random() < 0.7:
            # Otherwise the driver notices only when the next attempt joins.
            self.driver.on_worker_lost(worker.number, how)

    def lose_slot(self, id: int | None = None) -> None:
        """A worker dies with its machine: its task finds no slot for a long time, or never.

        One slot always stays or returns; otherwise no process would be left to end the run.
        """
        worker = self._choose_worker(id)
        if worker is None:
            return
        number, driver = worker.number, self.driver
        self.fault(f"{_name(worker)} dies, and its slot is gone")
        worker.die()
        self.lost_slots.add(number)

        def notice() -> None:
            if driver.alive and driver.workers.get(number) is worker:
                driver.on_worker_lost(number, "killed")

        self.after(0.05, notice)
        last = len(self.lost_slots) >= len(self.workers)
        if last or self.scheduler.random.random() < 0.7:
            self.after(0.8, lambda: self.return_slot(number))

    def return_slot(self, number: TaskNumber) -> None:
        """There is a slot for this task again."""
        self.lost_slots.discard(number)
        if self.outcome is None:
            self.fault(f"the slot of task {number} is back")
            if self.driver.up and number not in self.driver.starting:
                self.driver.start_worker(number)

    def kill_driver(self) -> None:
        if self.outcome is not None:
            return
        self.fault("kill the driver")
        self.driver.alive = False
        for worker in self.workers.values():
            # Workers notice after a while; until then they are zombies.
            self.after(0.05, worker.die)
        self.after(0.02, self.new_driver().take_over)

    def take_over(self) -> None:
        """A standby takes over from a driver that seemed dead and continues until it notices."""
        if self.outcome is not None:
            return
        self.fault("a standby takes over")
        zombies = dict(self.workers)
        self.after(0.02, self.new_driver().take_over)
        for worker in zombies.values():
            self.after(0.5, worker.die)  # their driver may never notice, if it has nothing to write

    def cut_power(self) -> None:
        """Of the machine on which everything runs: no process survives, not even as a zombie."""
        if self.outcome is not None:
            return
        self.fault("the power is cut")
        self.end_processes()
        log = self.disk.list(FOLDER)
        self.disk.lose_unsynced()
        self.answers.on_power_cut(log, self.disk.list(FOLDER))
        self.outside.lose_unsynced()
        self.after(0.1, self.new_driver().take_over)

    def end_processes(self) -> None:
        """The driver and all workers die, zombies too."""
        self.driver.alive = False
        for worker in self.everybody:
            if worker.alive:
                worker.die()

    def time_s(self) -> float:
        """The time by clocks that were not set, in seconds since 1970."""
        if self.fixed_time_s is not None:
            return self.fixed_time_s
        return SECONDS_SINCE_1970 + self.scheduler.now_s

    def call_delay_s(self) -> float:
        """How long an answer from outside takes; nothing, if only a test lets time pass."""
        if self.fixed_time_s is not None:
            return 0.0
        return self.scheduler.random.expovariate(1 / CALL_S)

    def wall_s(self, machine: TaskNumber) -> float:
        """The time on the clock of this worker's machine."""
        return self.time_s() + self.clock_ahead_s[machine]

    def jump_clock(self) -> None:
        """The clock of one machine, or of all, is set."""
        chance = self.scheduler.random
        by_s = chance.choice((0.05, 5.0, 3600.0)) * chance.choice((-1, 1))
        machines = chance.choice(
            (list(self.clock_ahead_s), [chance.choice(list(self.clock_ahead_s))])
        )
        self.fault(f"clocks of machines {machines} are set by {by_s:g} s")
        for machine in machines:
            self.clock_ahead_s[machine] += by_s

    def fail_operator(self) -> None:
        """One of the next calls of an operator, a source or a hook raises something."""
        self.fault("an operator is about to fail")
        self.operator_trouble.append(f"operators fail at {self.scheduler.now_s:.6f}")

    def trouble(self) -> None:
        """User code is at work: a pending fault may strike here."""
        if self.operator_trouble and self.scheduler.random.random() < 0.3:
            raise_one(OPERATORS, self.operator_trouble.pop(), self.scheduler.random)

    def fail_sink(self) -> None:
        self.fault("a sink is about to fail")
        self.outside.odd.append(f"sinks fail at {self.scheduler.now_s:.6f}")

    def rot_output(self) -> None:
        waiting = sorted(self.outside.waiting)
        if waiting:
            chosen = self.scheduler.random.choice(waiting)
            self.fault(f"rot output {chosen}")
            self.outside.rot(chosen)

    # Faults of the store.

    def fill_disk(self, for_s: float | None = None) -> None:
        self.fault("disk full")
        self.disk.full = True
        delay_s = self.scheduler.jitter_s(0.1) if for_s is None else for_s
        self.scheduler.after(delay_s, self._empty_disk)

    def _empty_disk(self) -> None:
        self.fault("disk has room again")
        self.disk.full = False

    def lose_answer(self) -> None:
        """The next manifest arrives, but the disk reports that it did not."""
        self.fault("the answer to the next manifest gets lost")
        self.disk.lose_answer = True

    def delay_manifest(self, for_s: float | None = None) -> None:
        """The next entry of the log times out, and arrives when it is no longer expected."""
        self._delay("manifests/", for_s)

    def delay_object(self, for_s: float | None = None) -> None:
        self._delay("objects/", for_s)

    def _delay(self, prefix: str, for_s: float | None) -> None:
        self.fault(f"the next put into {prefix} times out")

        def later(path: str, put: Callable[[], None]) -> None:
            typical_s = self.scheduler.random.choice((0.01, 0.05, 0.3))
            delay_s = self.scheduler.jitter_s(typical_s) if for_s is None else for_s
            self.fault(f"{path} times out")
            self.scheduler.after(delay_s, lambda: self._land(path, put))

        self.disk.delayed[prefix] = later

    def _land(self, path: str, put: Callable[[], None]) -> None:
        self.fault(f"{path} arrives late")
        put()
        self.moment("late")

    def slow_upload(self) -> None:
        """The next checkpoint that a shard saves arrives late."""
        self.fault("the next upload is slow")
        self._slow_uploads += 1

    def hang_upload(self) -> None:
        """The next checkpoint that a shard saves never arrives, without an error.

        Unless it is the shard's last: nothing could replace it, so the run would wait for it.
        """
        self.fault("the next upload hangs")
        self._hung_uploads += 1

    def next_upload_s(self, final: bool) -> float:
        """How long the next upload takes, of a shard's last checkpoint or another."""
        if self._hung_uploads and not final:
            self._hung_uploads -= 1
            return math.inf
        if not self._slow_uploads:
            return self.scheduler.jitter_s(self.upload_s)
        self._slow_uploads -= 1
        slow_s = 2 * CHECKPOINT_TIMEOUT_S
        self.scheduler.after(slow_s, lambda: self.fault("the slow upload ends"))
        return slow_s

    def fail_oddly(self) -> None:
        """The next operation of one kind raises an error that no caller expects."""
        operation = self.scheduler.random.choice(get_args(Operation))
        self.fault(f"the next {operation} fails oddly")
        self.disk.odd[operation] += 1

    def rot_object(self, path: str | None = None) -> None:
        """An object is changed or gone, sometimes its copy as well; where a path is given, always.

        Often one of the newest: only one checkpoint needs these, so there is one to fall back to.
        """
        paths = [path] if path is not None else self.disk.list("objects/")
        objects = [path for path in paths if self.disk.files[path]]
        if objects:
            by_number = sorted(objects, key=lambda path: path.rpartition("/")[2])
            among = by_number[-3:] if self.scheduler.random.random() < 0.5 else objects
            chosen = self.scheduler.random.choice(among)
            copy = chosen.replace("objects/", "copies/", 1)
            both = path or self.scheduler.random.random() < self.both_copies
            if both and self.disk.files.get(copy):
                self._rot(copy)
            elif self.scheduler.random.random() < 0.5 and self.disk.files.get(copy):
                chosen = copy
            self._rot(chosen)

    def _rot(self, path: str) -> None:
        self.fault(f"rot {path}")
        if self.scheduler.random.random() < 0.3:
            del self.disk.files[path]
        else:
            self.disk.rot(path)


def _name(worker: SimulatedWorker) -> str:
    return f"the spare {worker.number}" if worker.id is None else f"worker {worker.id}"
