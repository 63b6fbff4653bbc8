"""What befalls the processes of a simulated run: kills, zombies, power cuts, clocks that jump."""

from everstream.core.ids import HostId
from everstream.simulation.disk import SimulatedDisk
from everstream.simulation.driver import SimulatedDriver
from everstream.simulation.happenings import Happenings
from everstream.simulation.hosts import SimulatedHost


class ProcessMishaps(Happenings):
    """Each method is a fault; without an argument chance decides whom it hits."""

    disk: SimulatedDisk
    driver: SimulatedDriver
    hosts: dict[HostId, SimulatedHost]

    def new_driver(self) -> SimulatedDriver:
        """The next driver, which has not taken over yet; the one before is dead."""
        raise NotImplementedError

    def _choose_host(self, id: int | None) -> SimulatedHost | None:
        alive = [h for h in self.hosts.values() if h.alive and (id is None or h.id == id)]
        return self.scheduler.random.choice(alive) if alive and self.outcome is None else None

    def kill_host(self, id: int | None = None) -> None:
        host = self._choose_host(id)
        if host is not None:
            self.fault(f"kill host {host.id}")
            host.die()
            self._replace(host, "killed")

    def lose_host(self, id: int | None = None) -> None:
        """Silent for too long: replaced, but it lives on as a zombie for a while."""
        host = self._choose_host(id)
        if host is not None:
            self.fault(f"host {host.id} is thought dead")
            self.after(0.2, host.die)
            self._replace(host, "silent")

    def _replace(self, host: SimulatedHost, how: str) -> None:
        self.driver.start_host(host.id)
        if self.scheduler.random.random() < 0.7:
            # Otherwise the driver learns of it only when the next attempt says hello.
            self.driver.on_host_lost(host.id, how)

    def kill_driver(self) -> None:
        if self.outcome is not None:
            return
        self.fault("kill the driver")
        for host in self.hosts.values():
            # Hosts notice after a while; until then they are zombies.
            self.after(0.05, host.die)
        self.after(0.02, self.new_driver().take_over)
