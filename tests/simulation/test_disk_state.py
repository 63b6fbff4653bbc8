"""Simulated runs whose operators keep their state on disk: crashes in every place, exact output."""

from pathlib import Path

import pytest

from everstream.simulation.faults import Faults
from everstream.simulation.shapes import shape_for
from everstream.simulation.storm import policy_for, scheme_for
from everstream.simulation.world import World

PROTOCOLS = ["aligned", "unaligned", "uncoordinated", "hmnr"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (5, 25))])
def test_every_seed_ends_with_exactly_the_right_output(
    tmp_path: Path, protocol: str, first: int
) -> None:
    for seed in range(first, first + (5 if first < 5 else 20)):
        scheme, policy = scheme_for(protocol, seed), policy_for(protocol)
        world = World(
            *(seed, shape_for(seed), Faults(), scheme, policy),
            state="disk",
            scratch=str(tmp_path / str(seed)),
        )
        history = world.run()
        assert history.right, f"seed {seed}: {history.violations}"
    assert any(tmp_path.rglob("*.sst")), "nothing was on disk"
