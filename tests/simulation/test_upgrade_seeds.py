"""The program is another one after each restart of the driver, among all other faults.

The first keeps numbers, the second dicts, the third lists, and each migrates what it finds when it is
touched. Whatever is killed, torn, late or rotten meanwhile, also a fall back to what an earlier version has
saved, the output is that of a plain program that never changed.
"""

import random

import pytest

from everstream.core.plan import make_plan
from everstream.core.registry import PROTOCOLS
from everstream.simulation.driver import SimulatedDriver
from everstream.simulation.faults import Faults
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World
from tests.simulation.upgrading import migrated, shape

CHECKPOINTING = [name for name, protocol in PROTOCOLS.items() if protocol.choice is not None]
QUICK, LONG, LONG_CASES = range(16, 26), 100, 10


class Upgraded(World):
    """A run whose program is the next version whenever a driver starts."""

    def __init__(self, seed: int, protocol: str) -> None:
        # Drivers die often enough as it is.
        faults, scheme = Faults(driver_kills=0), scheme_for(protocol, seed)
        super().__init__(seed, shape(seed, 1), faults, scheme)
        chance = random.Random(-seed)
        for early_s, late_s in ((0.02, 0.12), (0.15, 0.4)):
            self.scheduler.at(chance.uniform(early_s, late_s), self.kill_driver)

    def new_driver(self) -> SimulatedDriver:
        driver = super().new_driver()
        version = min(self.drivers, 3)
        workers = len(self.plan.workers)
        self.wanted = make_plan(shape(self.seed, version).pipeline(self.seed), workers)
        return driver


def check(protocol: str, seeds: range, kinds: int) -> None:
    """All seeds end exact, and so many kinds of migration have happened in them."""
    migrated.clear()
    for seed in seeds:
        history = Upgraded(seed, protocol).run()
        assert history.right, f"{protocol}, seed {seed}: {history.violations}"
    assert len(migrated) >= kinds


@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_a_program_that_changes_at_a_restart_of_the_driver_ends_exact(protocol: str) -> None:
    check(protocol, QUICK, 1)


@pytest.mark.long
@pytest.mark.parametrize("case", range(LONG_CASES))
@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_a_thousand_programs_that_change_at_restarts_end_exact(protocol: str, case: int) -> None:
    check(protocol, range(case * LONG, (case + 1) * LONG), 2)
