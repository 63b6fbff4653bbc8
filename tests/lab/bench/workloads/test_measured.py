"""A paced query with a kill in it: its output is exact, and its latency curve shows the outage."""

from pathlib import Path

import polars as pl
import pytest

from everstream.connectors.collect import Collect
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.curves import Disturbed, draw_curves
from everstream_lab.bench.latency import Timed, read_arrivals, wall_clock_s
from everstream_lab.bench.recovery.recovery_time import recovery
from everstream_lab.bench.workloads.inputs import Inputs
from everstream_lab.bench.workloads.nexmark import Nexmark
from everstream_lab.bench.workloads.queries import selection
from everstream_lab.bench.workloads.verdict import EXACT, compare
from tests.spark import MASTER


@pytest.mark.long  # on a busy machine too little arrives before the kill to compare with
def test_a_kill_shows_in_the_latency_and_not_in_the_output(tmp_path: Path) -> None:
    rate, seconds = 10_000.0, 6
    nexmark = Nexmark(events=int(rate) * seconds, events_per_s=rate)
    pipeline = Pipeline("measured")
    chosen = selection(Inputs(pipeline, nexmark, rate=rate, shards=1), divisor=2)
    # Apart from the source, so that the kill leaves that one alive.
    apart = chosen.on_demand().map_batches(_same, name="apart")
    apart.sink(Timed(Collect(), tmp_path / "times"), name="out")
    result = pipeline.run(
        master=MASTER, workers=2, checkpoint=Coordinated(every="500ms"), kill=["apart@3s"]
    )
    bids = nexmark.all("bids")
    expected = bids.filter(pl.col("auction") % 2 == 0).select("auction", "price")
    assert compare(result.to_polars("out"), expected) == EXACT
    [report] = result.recoveries
    killed_s = wall_clock_s(report.start_s)
    arrivals = read_arrivals(tmp_path / "times")
    assert arrivals.records.sum() >= expected.height
    # No record comes before it is due, and those due in the outage waited.
    assert arrivals.latency_s.min() > -1e-3
    found = recovery(arrivals, killed_s)
    # How soon it is back depends on the machine; that it was away does not.
    assert found.worst_s > found.before_s
    run = Disturbed("aligned", arrivals, killed_s, found)
    draw_curves([run], tmp_path / "curves.png", "NEXMark 2, one kill", after_s=3.0)
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def _same(batch: pl.DataFrame) -> pl.DataFrame:
    return batch
