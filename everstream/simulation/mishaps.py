"""What befalls the processes of a simulated run: kills, zombies, power cuts, clocks that are set,
and code of users that raises whatever it likes."""

from everstream.core.ids import TaskNumber
from everstream.simulation.checks import Answers
from everstream.simulation.disk import SimulatedDisk
from everstream.simulation.driver import SimulatedDriver
from everstream.simulation.happenings import Happenings
from everstream.simulation.hosts import SimulatedHost
from everstream.simulation.oddities import OPERATORS, raise_one
from everstream.simulation.outside import Outside
from everstream.state.manifests import FOLDER

SECONDS_SINCE_1970 = 1e9
"""When a simulated run begins, by clocks that nobody has set."""


class ProcessMishaps(Happenings):
    """Each method is a fault; without an argument chance decides whom it hits."""

    disk: SimulatedDisk
    driver: SimulatedDriver
    outside: Outside
    answers: Answers
    everybody: list[SimulatedHost]
    """All hosts that were ever started."""
    clock_ahead_s: dict[TaskNumber, float]
    """Process -> how far the clock of its machine is ahead of the time."""
    operator_trouble: list[str]

    def new_driver(self) -> SimulatedDriver:
        """The next driver, which has not taken over yet; the one before is dead, or does not count."""
        raise NotImplementedError

    @property
    def hosts(self) -> dict[TaskNumber, SimulatedHost]:
        """The living attempts of the driver that counts."""
        raise NotImplementedError

    def _choose_host(self, id: int | None) -> SimulatedHost | None:
        alive = [h for h in self.hosts.values() if h.alive and (id is None or h.id == id)]
        return self.scheduler.random.choice(alive) if alive and self.outcome is None else None

    def kill_host(self, id: int | None = None) -> None:
        host = self._choose_host(id)
        if host is not None:
            self.fault(f"kill {_name(host)}")
            host.die()
            self._replace(host, "killed")

    def lose_host(self, id: int | None = None) -> None:
        """Silent for too long: replaced, but it lives on as a zombie for a while."""
        host = self._choose_host(id)
        if host is not None:
            self.fault(f"{_name(host)} is thought dead")
            self.after(0.2, host.die)
            self._replace(host, "silent")

    def _replace(self, host: SimulatedHost, how: str) -> None:
        self.driver.start_host(host.number)
        if self.scheduler.random.random() < 0.7:
            # Otherwise the driver learns of it only when the next attempt says hello.
            self.driver.on_host_lost(host.number, how)

    def kill_driver(self) -> None:
        if self.outcome is not None:
            return
        self.fault("kill the driver")
        self.driver.alive = False
        for host in self.hosts.values():
            # Hosts notice after a while; until then they are zombies.
            self.after(0.05, host.die)
        self.after(0.02, self.new_driver().take_over)

    def take_over(self) -> None:
        """A standby takes over from a driver that only seemed dead, and goes on until it learns it."""
        if self.outcome is not None:
            return
        self.fault("a standby takes over")
        zombies = dict(self.hosts)
        self.after(0.02, self.new_driver().take_over)
        for host in zombies.values():
            self.after(0.5, host.die)  # their driver may never be told, if it has nothing to write

    def cut_power(self) -> None:
        """Of the machine where everything runs: nobody lives on, not even as a zombie."""
        if self.outcome is not None:
            return
        self.fault("the power is cut")
        self.driver.alive = False
        for host in self.everybody:
            if host.alive:
                host.die()
        log = self.disk.list(FOLDER)
        self.disk.lose_unsynced()
        self.answers.on_power_cut(log, self.disk.list(FOLDER))
        self.outside.lose_unsynced()
        self.after(0.1, self.new_driver().take_over)

    def wall_s(self, machine: TaskNumber) -> float:
        """What the clock of this host's machine shows."""
        return SECONDS_SINCE_1970 + self.scheduler.now_s + self.clock_ahead_s[machine]

    def jump_clock(self) -> None:
        """Somebody sets the clock of one machine, or of all."""
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
        """User code is at work: what was to go wrong may do so here."""
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


def _name(host: SimulatedHost) -> str:
    return f"the spare {host.number}" if host.id is None else f"host {host.id}"
