"""State with a time to live, maps and lists per key, and timers on disk, in runs with faults."""

import random
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.scheme import ALIGNED, UNALIGNED, Scheme, scheme_of
from everstream.simulation.faults import Faults
from everstream.simulation.kept_shapes import baskets, expiring
from everstream.simulation.shapes import echoes
from everstream.simulation.world import World

SCHEMES = {
    "unaligned": UNALIGNED,
    "uncoordinated": scheme_of(es.Uncoordinated(every="20ms")),
    "hmnr": scheme_of(es.CommunicationInduced(rule="hmnr", every="20ms")),
    "bcs": scheme_of(es.CommunicationInduced(rule="bcs", every="20ms")),
}
RESCALES = Faults(rescales=4, worker_kills=2, ambushes=1)
SHAPES: dict[str, Any] = {"expiring": expiring, "baskets": baskets}


def check(
    shape: Any, seeds: range, scheme: Scheme = ALIGNED, faults: Faults | None = None, **options: Any
) -> int:
    """Run them all; how many failures the runs recovered from."""
    recoveries = 0
    for seed in seeds:
        one = shape(random.Random(seed))
        history = World(seed, one, faults or Faults(), scheme, **options).run()
        assert history.right, f"seed {seed}: {history.violations} {history.notes}"
        recoveries += history.recoveries
    return recoveries


@pytest.mark.parametrize("shape", SHAPES)
def test_kept_state_is_right_after_any_faults(shape: str, tmp_path: Path) -> None:
    assert check(SHAPES[shape], range(6)) > 0
    on_disk = {"state": "disk", "scratch": str(tmp_path)}
    assert check(SHAPES[shape], range(9, 12), **on_disk) > 0


@pytest.mark.parametrize("name", SCHEMES)
def test_so_it_is_under_the_other_protocols(name: str) -> None:
    assert sum(check(shape, range(4), SCHEMES[name]) for shape in SHAPES.values()) > 0


@pytest.mark.parametrize("shape", SHAPES)
def test_so_it_is_while_the_numbers_of_shards_change(shape: str, tmp_path: Path) -> None:
    assert check(SHAPES[shape], range(4), faults=RESCALES) > 0
    on_disk = {"state": "disk", "scratch": str(tmp_path)}
    check(SHAPES[shape], range(4, 6), faults=RESCALES, **on_disk)


def test_timers_on_disk_fire_once_after_any_faults(tmp_path: Path) -> None:
    on_disk = {"state": "disk", "scratch": str(tmp_path)}
    assert check(echoes, range(4), **on_disk) > 0
    check(echoes, range(4, 6), faults=RESCALES, **on_disk)


@pytest.mark.long
@pytest.mark.parametrize("case", range(20))
@pytest.mark.parametrize("shape", [*SHAPES, "echoes"])
def test_kept_state_and_timers_are_right_for_a_thousand_seeds(
    shape: str, case: int, tmp_path: Path
) -> None:
    made = SHAPES.get(shape, echoes)
    seeds = range(100 + case * 50, 150 + case * 50)
    on_disk = {"state": "disk", "scratch": str(tmp_path)}
    check(made, seeds[:16])
    check(made, seeds[16:26], **on_disk)
    check(made, seeds[26:36], faults=RESCALES)
    check(made, seeds[36:38], faults=RESCALES, **on_disk)
    for number, scheme in enumerate(SCHEMES.values()):
        check(made, seeds[38 + 3 * number : 41 + 3 * number], scheme)
