"""Errors name the operator that the user wrote, and no record where there is none."""

from pathlib import Path

import polars as pl
import pytest

import everstream as es
from everstream.core.ids import ShardId
from everstream.core.permits import permit
from everstream.core.plan import make_plan
from everstream.errors import EverstreamError, RefusedRecords
from everstream.pipeline.batch import Batch
from everstream.runtime.chain import ChainStages
from everstream.runtime.outlets import Outlet
from everstream.state.snapshot import ShardState


class Nowhere:
    """An outlet that lets everything go."""

    def collect(self, batch: Batch) -> None: ...
    def advance(self, watermark: int) -> None: ...


def failure(pipeline: es.Pipeline, batch: Batch, folder: Path) -> EverstreamError:
    """What the chain of the source says of this batch."""
    plan = make_plan(pipeline, 1)
    head = ShardId(next(iter(pipeline.graph.nodes)), 0)
    outlets: dict[int, Outlet] = dict.fromkeys(range(len(pipeline.graph.edges)), Nowhere())  # type: ignore[arg-type]
    stages = ChainStages(plan, head, outlets, ShardState(), lambda: 0.0)
    stages.build({}, {}, 1, str(folder), permit(0))
    with pytest.raises(Exception) as caught:
        stages.forward(batch)
    return stages.explain(caught.value)


@pytest.mark.parametrize("name", [None, "revenue"])
def test_a_window_is_called_as_it_was_written(tmp_path: Path, name: str | None) -> None:
    pipeline = es.Pipeline("p")
    source = pipeline.source(es.FromList([]), name="orders")
    timed = source.event_time(pl.col("at").cast(pl.Datetime("us"))).key_by("shop")
    timed.window(es.Tumbling("1m")).aggregate(total=es.sum("price"), name=name).collect()
    frame = pl.DataFrame({"at": [0], "shop": ["x"], "cents": [1]})
    told = failure(pipeline, frame, tmp_path)
    assert f"operator '{name or 'window'}' (shard 0) failed" in told.message
    assert "price" in told.message
    assert "-local" not in told.message
    assert "record: None" not in told.message


def test_a_column_of_several_types_is_named_with_value_operator_and_record(tmp_path: Path) -> None:
    pipeline = es.Pipeline("p")
    source = pipeline.source(es.FromList([]), name="orders")
    source.with_columns(pl.col("n") + 1, name="more").collect()
    told = failure(pipeline, [{"n": 1}, {"n": "2"}], tmp_path)
    assert "operator 'more' (shard 0) failed" in told.message
    assert "column 'n' has values of several types: '2' is not an exact Int64" in told.message
    assert "Record: {'n': '2'}" in told.message


class AsItIs(es.Operator):
    def process(self, record: object, ctx: es.Context) -> None:
        ctx.emit(record)


def test_large_unsigned_numbers_come_through_process_into_parquet(tmp_path: Path) -> None:
    pipeline = es.Pipeline("p")
    numbers = pipeline.source(es.FromList([]), name="numbers").process(AsItIs(), name="through")
    numbers.sink(es.Parquet(f"{tmp_path}/out/"), name="files")
    plan = make_plan(pipeline, 1)
    stages = ChainStages(plan, ShardId("numbers", 0), {}, ShardState(), lambda: 0.0)
    stages.build({}, {}, 1, str(tmp_path / "store"), permit(0))
    sent = [2**64 - 1, 0, 2**63]
    stages.forward(pl.DataFrame({"n": sent}, schema={"n": pl.UInt64}))
    stages.prepare(1)
    for waiting in stages.unpersisted():
        waiting.perform()
    for transaction in stages.committable(permit(1)):
        transaction.commit(permit(1))
    found = pl.read_parquet(f"{tmp_path}/out/*.parquet")
    assert found.schema == {"n": pl.UInt64}
    assert found["n"].to_list() == sent
    with pytest.raises(
        RefusedRecords, match="operator 'files', column 'n': -1 is not an exact UInt64"
    ):
        stages.forward([{"n": -1}])
