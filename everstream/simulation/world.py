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

from everstream.core.checkpointing.manifest import EpochManifest, manifests_in
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import TaskNumber
from everstream.core.orders import Outcome, Policy
from everstream.core.plan import Plan, make_plan, rescaled
from everstream.core.scheme import ALIGNED, Scheme
from everstream.core.upgrade.compatibility import (
    NO_OVERRIDES,
    GoingOn,
    UpgradeOverrides,
    going_on,
)
from everstream.errors import InternalError
from everstream.pipeline.operator import StateKind
from everstream.pipeline.state_backend import placed
from everstream.pipeline.tuning import Tuning, merged, resolved, tunable_in
from everstream.runtime.pace import Pace
from everstream.simulation.checks import Answers, Safety
from everstream.simulation.disk import SimulatedDisk
from everstream.simulation.driver import SimulatedDriver
from everstream.simulation.faults.injected import Faults
from everstream.simulation.faults.mishaps import ProcessMishaps
from everstream.simulation.faults.store_mishaps import CHECKPOINT_TIMEOUT_S, StoreMishaps
from everstream.simulation.history import History
from everstream.simulation.outside import Outside, OutsideSink
from everstream.simulation.scheduler import Scheduler
from everstream.simulation.shapes import Shape
from everstream.simulation.workers import SimulatedWorker
from everstream.state.manifests import entry_of
from everstream.state.store import CheckpointStore, Lease

__all__ = ["History", "World"]

PACK_AFTER_S = 0.3
"""Longer than Spark usually takes to restart a task."""


class World(ProcessMishaps, StoreMishaps):
    """Everything in one simulated run."""

    coordinator: Coordinator
    """The coordinator of the last driver that was up."""
    store: CheckpointStore
    lease: Lease
    """The newest lease."""

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
    ) -> None:
        """state, scratch: where operators keep their state, and the folder for it if on disk.

        number: the number by which sinks find this world; the seed, unless several worlds of one
        seed exist at once. only: which of the faults that the seed selects happen; None for all.
        """
        super().__init__(Scheduler(seed), History(seed, shape.name))
        chance = self.scheduler.random
        self.seed = seed
        self.scheme = scheme
        self.pace = pace
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
        self.pack_after_s = PACK_AFTER_S if faults.lost_slots else math.inf
        self.everybody: list[SimulatedWorker] = []
        self.attempts: Counter[TaskNumber] = Counter()
        processes = map(TaskNumber, range(len(self.plan.workers) + spares))
        self.clock_ahead_s = dict.fromkeys(processes, 0.0)
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
