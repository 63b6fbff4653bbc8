"""An audit sees what a sink with columns would do with values that drift in type."""

from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.audit.rehearsal import Rehearsal, collected, rehearsed
from everstream.core.permits import permit
from everstream.errors import RefusedRecords
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink, SinkShard, Writer


def audited(sink: Sink) -> es.Pipeline:
    return rehearsed(es.Pipeline("p").source(es.FromList([])).sink(sink, name="out"), Rehearsal())


def opened(pipeline: es.Pipeline, store: Path, generation: int = 1, shard: int = 0) -> Writer:
    what = pipeline.graph.nodes["out"].what
    assert isinstance(what, Sink)
    writer = what.open(SinkShard("p", "out", shard, 2, generation, str(store)))
    writer.recover([], permit(generation - 1))
    return writer


def commit(writer: Writer, checkpoint: int) -> None:
    transaction = writer.prepare(checkpoint)
    assert transaction is not None
    transaction.persist()
    transaction.commit(permit(checkpoint))


def test_a_value_that_the_sink_would_refuse_is_refused_in_the_audit(tmp_path: Path) -> None:
    pipeline = audited(es.Parquet(f"{tmp_path}/out/"))
    writer, other = (opened(pipeline, tmp_path / "store", shard=shard) for shard in (0, 1))
    writer.write([{"a": 1}])
    commit(writer, 1)
    for one in (writer, other, opened(pipeline, tmp_path / "store", generation=2)):
        with pytest.raises(RefusedRecords, match=r"column 'a': 4000\.5 is not an exact Int64"):
            one.write([{"a": 4000.5}])
    assert collected(pipeline.graph, tmp_path / "store", Rehearsal()) == {"out": [{"a": 1}]}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sink", "second"), [(es.Csv("out/"), 4000.5), (es.JsonLines("out/"), "text")]
)
def test_what_the_sink_would_store_is_compared_as_it_came(
    tmp_path: Path, sink: Any, second: Any
) -> None:
    pipeline = audited(sink)
    writer = opened(pipeline, tmp_path)
    batches: list[Batch] = [[{"a": 1}], [{"a": second}, {"a": 2}]]
    for batch in batches:
        writer.write(batch)
    commit(writer, 1)
    found = collected(pipeline.graph, tmp_path, Rehearsal())["out"]
    assert repr(found) == repr([{"a": 1}, {"a": second}, {"a": 2}])
