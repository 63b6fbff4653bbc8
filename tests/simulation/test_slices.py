"""Every protocol while captures are saved one entry at a time, between faults of every kind."""

import pytest

from everstream.simulation.faults import Faults
from everstream.simulation.shapes import shape_for
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World
from everstream.state.backends import memory, overlay, slicing


@pytest.mark.parametrize("protocol", ["aligned", "unaligned", "uncoordinated", "hmnr", "bcs"])
def test_captures_in_slices_end_with_exactly_the_right_output(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "can_be_sliced", bool)
    monkeypatch.setattr(slicing, "SLICE_ENTRIES", 1)
    monkeypatch.setattr(overlay, "FOLD_ENTRIES", 1)
    saved = 0
    go_on = slicing.Slices.go_on

    def counted(self: slicing.Slices, clock_s: object) -> None:
        nonlocal saved
        saved += 1
        go_on(self, lambda: 0.0)

    monkeypatch.setattr(slicing.Slices, "go_on", counted)
    for seed in range(5):
        monkeypatch.setattr(slicing, "COPIED_ENTRIES", 10**9 if seed % 2 else 0)
        history = World(seed, shape_for(seed), Faults(), scheme_for(protocol, seed)).run()
        assert history.right, f"seed {seed}: {history.violations}"
    assert saved > 10, "they are sliced"
