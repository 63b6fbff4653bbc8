"""Faults of the processes of a simulated run: kills, zombies, power cuts, clocks that are set, and
user code that raises any kind of error."""

from everstream.core.ids import TaskNumber
from everstream.simulation.checks import Answers
from everstream.simulation.disk import SimulatedDisk
from everstream.simulation.driver import SimulatedDriver
from everstream.simulation.faults.oddities import OPERATORS, raise_one
from everstream.simulation.happenings import Happenings
from everstream.simulation.outside import Outside
from everstream.simulation.workers import SimulatedWorker
from everstream.state.manifests import FOLDER

SECONDS_SINCE_1970 = 1e9
"""When a simulated run begins, by clocks that were not set."""


class ProcessMishaps(Happenings):
    """Each method is a fault; without an argument chance decides which process it hits."""

    disk: SimulatedDisk
    driver: SimulatedDriver
    outside: Outside
    answers: Answers
    everybody: list[SimulatedWorker]
    """All workers that were ever started."""
    clock_ahead_s: dict[TaskNumber, float]
    """Process -> how far the clock of its machine is ahead of the time."""
    lost_slots: set[TaskNumber]
    """Tasks for which Spark has no slot."""
    operator_trouble: list[str]
    fixed_time_s: float | None = None
    """The time by all clocks, if only a test lets it pass."""

    def new_driver(self) -> SimulatedDriver:
        """The next driver, which has not taken over yet; the last is dead or was replaced."""
        raise NotImplementedError

    @property
    def workers(self) -> dict[TaskNumber, SimulatedWorker]:
        """The living attempts of the present driver."""
        raise NotImplementedError

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
        """Output that waits for its commit is damaged."""
        waiting = sorted(self.outside.waiting)
        if waiting:
            chosen = self.scheduler.random.choice(waiting)
            self.fault(f"rot output {chosen}")
            self.outside.rot(chosen)


def _name(worker: SimulatedWorker) -> str:
    return f"the spare {worker.number}" if worker.id is None else f"worker {worker.id}"
