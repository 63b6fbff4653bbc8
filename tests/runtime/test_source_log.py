"""Source shards whose output can be had again by reading log offsets; all others log bytes."""

import random
from collections.abc import Callable, Sequence

import polars as pl
import pytest

from everstream.connectors.generate.sources import FromGenerator, FromList, Range
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.core.plan import Plan, make_plan
from everstream.core.scheme import scheme_of
from everstream.errors import CorruptObject
from everstream.pipeline.batch import records_of
from everstream.pipeline.checkpointing import Uncoordinated
from everstream.pipeline.stream import Pipeline, Stream
from everstream.runtime.payload import BatchPayload
from everstream.runtime.sent_frames import SourceLog, reads_again
from everstream.simulation.faults import Faults
from everstream.simulation.shapes import columns
from everstream.simulation.world import World
from everstream.state.objects import ObjectRef

SOURCE = ShardId("numbers", 0)


def planned(build: Callable[[Stream], Stream], source: object = None) -> Plan:
    pipeline = Pipeline("test")
    stream = pipeline.source(source or Range(100, column="n", batch=10), name="numbers")  # type: ignore[arg-type]
    build(stream).map(lambda row: row, name="next", shards=2).collect()
    return make_plan(pipeline, 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.on_demand(),
        lambda s: s.filter(pl.col("n") > 3).select("n", m=pl.col("n") * 2).key_by("m"),
        lambda s: s.with_columns(k=1).event_time("n", unit="us").broadcast(),
        lambda s: s.branch(pl.col("n") > 3)[0].on_demand(),
    ],
)
def test_columns_of_a_generated_source_are_read_again(build: Callable[[Stream], Stream]) -> None:
    assert reads_again(planned(build), SOURCE)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(lambda row: row).on_demand(),
        lambda s: s.filter(lambda row: True).on_demand(),
        lambda s: s.with_columns(k=pl.col("n").shuffle()).on_demand(),
        lambda s: s.with_columns(k=pl.col("n").map_elements(abs, pl.Int64)).on_demand(),
        lambda s: s.filter(pl.col("n") > 3, on_error="skip").on_demand(),
        lambda s: s.key_by(lambda row: row["n"]),
    ],
)
def test_what_may_come_out_differently_is_logged(build: Callable[[Stream], Stream]) -> None:
    assert not reads_again(planned(build), SOURCE)


def test_a_source_that_cuts_its_batches_by_time_is_logged() -> None:
    generator = FromGenerator(lambda offset: iter(range(offset, 10)))
    assert not reads_again(planned(lambda s: s.on_demand(), generator), SOURCE)
    assert reads_again(planned(lambda s: s.on_demand(), FromList([1, 2])), SOURCE)


def test_only_sources_read_again() -> None:
    plan = planned(lambda s: s.on_demand())
    assert not reads_again(plan, ShardId("next", 0))


def no_store(refs: Sequence[ObjectRef]) -> list[bytes]:
    raise AssertionError("nothing was written")


def channels_of(plan: Plan) -> list[ChannelId]:
    return plan.outputs[SOURCE]


def sent(channel: ChannelId, sequence: int, batch: pl.DataFrame) -> Frame:
    payload = BatchPayload(batch)
    return Frame(
        channel, FrameKind.DATA, Generation(1), sequence, records=len(batch), payload=payload
    )


@pytest.mark.parametrize("most", [100, 4, 1], ids=["whole", "cut", "one-by-one"])
def test_frames_are_read_again_where_they_were_read_and_weigh_nothing(most: int) -> None:
    plan = planned(lambda s: s.filter(pl.col("n") % 3 > 0).key_by("n"))
    left, right = channels_of(plan)
    log = SourceLog(plan, SOURCE, no_store)
    reader = Range(100, column="n", batch=10).open(0, 1)
    routing = plan.graph.edges[left.edge].routing
    wanted: dict[ChannelId, list[list[object]]] = {left: [], right: []}
    for _ in range(10):
        log.reading_at(reader.offset)
        batch = reader.read()
        assert isinstance(batch, pl.DataFrame)
        for start in range(0, len(batch), most):
            records = batch[start : start + most]
            log.forwarding(start, len(records))
            kept = records.filter(pl.col("n") % 3 > 0)
            for place, part in routing.keying.split(kept, 2):  # type: ignore[union-attr]
                channel = (left, right)[place]
                assert isinstance(part, pl.DataFrame)
                log.append(sent(channel, len(wanted[channel]) + 1, part))
                wanted[channel].append(records_of(part))
    [segment] = log.seal()
    frames = sum(map(len, wanted.values()))
    assert frames >= 20 and segment.size_bytes < frames * 220
    for channel in (left, right):
        for position in range(len(wanted[channel]) + 1):
            again = log.after(channel, position)
            found = [records_of(f.payload.batch) for f in again if f.payload is not None]
            assert found == wanted[channel][position:]


def test_frames_that_waited_in_a_checkpoint_are_logged_whole() -> None:
    plan = planned(lambda s: s.on_demand())
    channel = channels_of(plan)[0]
    log = SourceLog(plan, SOURCE, no_store)
    batch = pl.DataFrame({"n": [7, 8]})
    log.append(sent(channel, 1, batch))
    [frame] = log.after(channel, 0)
    assert frame.payload is not None
    assert records_of(frame.payload.batch) == records_of(batch)


def test_a_source_that_does_not_keep_its_word_is_found_out() -> None:
    plan = planned(lambda s: s.on_demand())
    channel = channels_of(plan)[0]
    log = SourceLog(plan, SOURCE, no_store)
    log.reading_at(Range(100, column="n", batch=10).open(0, 1).offset)
    log.forwarding(0, 10)
    log.append(sent(channel, 1, pl.DataFrame({"n": [1, 2, 3]})))
    with pytest.raises(CorruptObject, match="does not return the records that it returned before"):
        log.after(channel, 0)


@pytest.mark.parametrize("case", range(3))
def test_runs_with_faults_are_exact_when_sources_read_again(case: int) -> None:
    for seed in range(case * 25, case * 25 + 25):
        shape = columns(random.Random(seed))
        scheme = scheme_of(Uncoordinated(every=(0.01, 0.03, 0.1)[seed % 3]))
        history = World(seed, shape, Faults(), scheme=scheme).run()
        assert history.right, f"seed {seed}: {history.violations}"
