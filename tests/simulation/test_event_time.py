"""Windows and joins of event time in simulated runs with faults: the right output, every time."""

import random

import pytest

import everstream as es
from everstream.core.scheme import ALIGNED, UNALIGNED, Scheme, scheme_of
from everstream.simulation.faults import Faults
from everstream.simulation.shapes import EVENT_TIME_SHAPES
from everstream.simulation.world import World

SCHEMES = {
    "unaligned": UNALIGNED,
    "uncoordinated": scheme_of(es.Uncoordinated(every="20ms")),
    "hmnr": scheme_of(es.CommunicationInduced(rule="hmnr", every="20ms")),
    "bcs": scheme_of(es.CommunicationInduced(rule="bcs", every="20ms")),
}


def check(seeds: range, scheme: Scheme = ALIGNED) -> int:
    """Run them all; how many failures the runs recovered from."""
    recoveries = 0
    for seed in seeds:
        for shape in EVENT_TIME_SHAPES:
            history = World(seed, shape(random.Random(seed)), Faults(), scheme).run()
            assert history.right, f"seed {seed}, {shape.__name__}: {history.violations}"
            recoveries += history.recoveries
    return recoveries


def test_windows_and_joins_have_exactly_the_right_output_after_any_faults() -> None:
    assert check(range(8)) > 8


@pytest.mark.parametrize("name", SCHEMES)
def test_so_they_have_under_the_other_protocols(name: str) -> None:
    assert check(range(3), SCHEMES[name]) > 0


@pytest.mark.long
@pytest.mark.parametrize("case", range(1, 21))
def test_windows_and_joins_have_the_right_output_for_a_thousand_seeds(case: int) -> None:
    assert check(range(case * 50 - 35, case * 50 + 15)) > 50
