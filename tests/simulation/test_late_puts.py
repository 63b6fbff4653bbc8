"""A store that often answers too late: nothing is lost or doubled, under any protocol.

Every seeded run has some puts that time out and land later; here they are the rule.
"""

from collections import Counter

import pytest

from everstream.core.orders import Outcome
from everstream.core.registry import PROTOCOLS, named
from everstream.simulation.faults import Faults
from everstream.simulation.shapes import shape_for
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World
from everstream.state.manifests import ManifestLog

OFTEN_LATE = Faults(
    rotten_objects=1,
    slow_uploads=0,
    odd_errors=0,
    driver_kills=2,
    lost_answers=2,
    delayed_manifests=12,
    delayed_objects=4,
)
CHECKPOINTING = [name for name, protocol in PROTOCOLS.items() if protocol.choice is not None]
QUICK = 6
LONG_CASES, LONG = 10, 60


def check(protocol: str, seeds: range) -> Counter[str]:
    """How often what happened."""
    found: Counter[str] = Counter()
    for seed in seeds:
        cycles = named(protocol).cycles and seed % 2 == 1
        shape = shape_for(seed, cycles=cycles)
        world = World(seed, shape, OFTEN_LATE, scheme_for(protocol, seed))
        world.scheduler.at(0.1 + seed % 9 / 10, world.stop)
        while world.run().outcome is Outcome.STOPPED:
            world.resume()
        history = world.history
        assert history.right, f"seed {seed}, {protocol}: {history.violations or history.notes[-1]}"
        found.update(entry.kind for entry in ManifestLog(world.disk).entries())
        found["late"] += sum(line.endswith("arrives late") for line in history.faults)
        found["recoveries"] += history.recoveries
    return found


@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_a_store_that_often_answers_too_late_costs_no_record(protocol: str) -> None:
    found = check(protocol, range(QUICK))
    assert found["late"] > QUICK and found["void"] > QUICK / 10, found
    assert found["recoveries"] > QUICK / 2, found


@pytest.mark.long
@pytest.mark.parametrize("case", range(1, LONG_CASES + 1))
@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_it_costs_no_record_in_hundreds_of_runs(protocol: str, case: int) -> None:
    """Ten cases of sixty seeds: 600 runs of each protocol."""
    check(protocol, range(case * LONG - LONG + QUICK, case * LONG + QUICK))
