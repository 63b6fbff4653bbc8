"""The curves of several protocols are drawn side by side, with and without a kill."""

from pathlib import Path

import matplotlib.image

from everstream_lab.bench.curves import Disturbed, draw_curves
from everstream_lab.bench.recovery.recovery_time import recovery
from tests.lab.bench.arrivals import steady, with_outage


def test_each_protocol_has_its_column(tmp_path: Path) -> None:
    runs = []
    for number, protocol in enumerate(("aligned", "unaligned", "uncoordinated", "hmnr")):
        run = with_outage(steady(0.02, 20), 10.0, 10.8 + number / 3, 2.0 + number)
        runs.append(Disturbed(protocol, run, 10.0, recovery(run, 10.0)))
    sizes = []
    for count in (1, 4):
        path = tmp_path / f"{count}.png"
        draw_curves(runs[:count], path, "NEXMark 2, one kill", rate=1_000.0)
        sizes.append(matplotlib.image.imread(path).shape[1])
    assert sizes[1] > 1.5 * sizes[0]


def test_runs_without_a_kill_and_runs_that_never_come_back_can_be_drawn(tmp_path: Path) -> None:
    quiet = Disturbed("none", steady(0.02, 20), 10.0)
    run = with_outage(steady(0.02, 13), 10.0, 12.9, 1.01)
    lost = Disturbed("lost", run, 10.0, recovery(run, 10.0))
    draw_curves([quiet, lost], tmp_path / "both.png", "two")
    assert (tmp_path / "both.png").stat().st_size > 10_000
