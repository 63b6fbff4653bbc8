"""Micro-batches whose program is another one after each restart of the driver, among all other faults."""

from everstream.core.orders import Outcome
from everstream.core.plan import make_plan
from everstream.engine.microbatch.layout import Layout
from tests.engine.microbatch.world import LocalWorld, Rates
from tests.simulation.upgrading import migrated, shape

SEEDS = 12


class Upgraded(LocalWorld):
    """A run whose program is the next version whenever a driver starts."""

    def _drive(self) -> bool:
        version = min(self.drivers + 1, 3)
        self.layout = Layout(make_plan(shape(self.seed, version).pipeline(self.seed), 1))
        return super()._drive()

    def __init__(self, seed: int) -> None:
        self.seed = seed
        super().__init__(seed, shape(seed, 1), Rates(dead_driver=0.1))
        self.budget = 20  # few and large epochs: it is not they that are tried here


def test_a_program_that_changes_at_a_restart_of_the_driver_ends_exact() -> None:
    migrated.clear()
    for seed in range(SEEDS):
        world = Upgraded(seed)
        assert world.run() is Outcome.FINISHED, f"seed {seed}: {world.notes[-3:]}"
        assert not world.violations, f"seed {seed}: {world.violations}"
    assert migrated
