"""A rehearsed pipeline leaves its sinks alone, and its sources wait for the gate."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.audit.rehearsal import (
    Rehearsal,
    clear,
    collected,
    looks_at_batches,
    real_sinks,
    rehearsed,
)
from everstream.audit.throttled_source import ThrottledSource
from everstream.connectors import SinkShard, Writer
from everstream.connectors.collect import Collect
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, Reader


def pipeline_into(sink: es.Sink) -> es.Pipeline:
    pipeline = es.Pipeline("rehearsed")
    pipeline.source(es.Range(100, batch=10), name="numbers").map(str).sink(sink, name="out")
    return pipeline


def test_every_sink_is_replaced_under_its_name_and_the_original_is_not_changed() -> None:
    sink = es.JsonLines("never-written/")
    pipeline = pipeline_into(sink)
    copy = rehearsed(pipeline, Rehearsal("gate", 1.0, (("numbers", 100),)))
    assert isinstance(copy.graph.nodes["out"].what, Collect)
    assert isinstance(copy.graph.nodes["numbers"].what, ThrottledSource)
    assert pipeline.graph.nodes["out"].what is sink
    assert copy.graph.edges == pipeline.graph.edges


def test_without_a_gate_sources_are_as_they_were() -> None:
    pipeline = pipeline_into(es.JsonLines("never-written/"))
    copy = rehearsed(pipeline, Rehearsal())
    assert copy.graph.nodes["numbers"].what is pipeline.graph.nodes["numbers"].what


class Shelf(es.Sink):
    """Has a place of its own for everybody."""

    def __init__(self, label: str = "real") -> None:
        self.label = label
        self.cleared: list[str] = []

    def open(self, who: SinkShard) -> Writer:
        raise AssertionError("nothing is written here")

    def audit_copy(self, label: str) -> "Shelf":
        other = Shelf(label)
        other.cleared = self.cleared
        return other

    def results(self, pipeline: str, operator: str, store: str) -> list[Any]:
        return [[(self.label, operator)]]

    def clear_audit_copy(self, pipeline: str, operator: str) -> None:
        self.cleared.append(self.label)


def test_a_sink_that_can_write_aside_does_so_if_that_is_wanted(tmp_path: Path) -> None:
    sink = Shelf()
    pipeline = pipeline_into(sink)
    assert isinstance(rehearsed(pipeline, Rehearsal()).graph.nodes["out"].what, Collect)
    copy = rehearsed(pipeline, Rehearsal(audit_copy="first"))
    assert real_sinks(pipeline.graph) == ["out"]
    assert real_sinks(pipeline_into(es.JsonLines("never-written/")).graph) == []
    second = Rehearsal(audit_copy="second")
    assert collected(copy.graph, str(tmp_path), second) == {"out": [("second", "out")]}
    clear(copy.graph, second)
    assert sink.cleared == ["second"]
    clear(copy.graph, Rehearsal())
    assert sink.cleared == ["second"]


def held(gate: Path, rate: float, whole_frames: bool = False) -> Reader:
    return ThrottledSource(
        es.Range(100, batch=10), rate, str(gate), whole_frames=whole_frames
    ).open(0, 1)


def next_frame(reader: Reader) -> Any:
    while (frame := reader.read()) is None:
        assert reader.ready_in_s() > 0
    return frame


def test_frames_are_cut_small_and_the_end_waits_for_the_gate(tmp_path: Path) -> None:
    reader = held(tmp_path / "gate", rate=60.0 * 20)
    records: list[Any] = []
    frames: list[Batch] = []
    while len(records) < 100:
        frames.append(next_frame(reader))
        records += list(frames[-1])
    assert records == list(range(100))
    assert max(len(frame) for frame in frames) == 10, "what is small enough is not cut"
    assert [reader.read() for _ in range(5)] == [None] * 5
    (tmp_path / "gate").touch()
    assert reader.read() is END


def test_whole_frames_stay_whole(tmp_path: Path) -> None:
    reader = held(tmp_path / "gate", rate=40.0, whole_frames=True)
    assert list(next_frame(reader)) == list(range(10))


def test_an_open_gate_lets_everything_through_at_once(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    reader = held(tmp_path / "gate", rate=1e-6)
    assert [list(reader.read()) for _ in range(100)] == [[n] for n in range(100)]  # type: ignore[arg-type]
    assert reader.read() is END


@pytest.mark.parametrize("given", [0, 1, 9, 10, 11, 37, 99, 100])
def test_a_reader_goes_on_from_the_offset_of_another(tmp_path: Path, given: int) -> None:
    (tmp_path / "gate").touch()
    first, second = held(tmp_path / "gate", 1.0), held(tmp_path / "gate", 1.0)
    for _ in range(given):
        next_frame(first)
    second.seek(first.offset)
    rest: list[Any] = []
    while (frame := next_frame(second)) is not END:
        rest += list(frame)
    assert rest == list(range(given, 100))


class Batches(es.Operator):
    def process_batch(self, batch: Batch, ctx: es.Context) -> None:
        ctx.emit(len(batch))


class Records(es.Operator):
    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.emit(record)


def test_operators_that_see_batches_are_known() -> None:
    def seen(build: Any) -> bool:
        pipeline = es.Pipeline("p")
        build(pipeline.source(es.Range(10, column="n"))).collect()
        return looks_at_batches(pipeline.graph)

    assert seen(lambda stream: stream.map_batches(lambda batch: batch))
    assert seen(lambda stream: stream.process(Batches()))
    assert seen(lambda stream: stream.with_columns(total=pl.col("n").sum()))
    assert seen(lambda stream: stream.filter(pl.col("n") > pl.col("n").mean()))
    assert seen(lambda stream: stream.branch(pl.col("n") > 5)[0])
    assert not seen(lambda stream: stream.process(Records()))
    assert not seen(lambda stream: stream.map(str).filter(bool))
