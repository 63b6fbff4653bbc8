"""From graphs to shards, channels and workers; and what a manifest must fit."""

import json
from dataclasses import replace
from typing import Any

import pytest

from everstream.connectors.generate.sources import Range
from everstream.core.checkpointing.manifest import EpochManifest, check_fits, records_for
from everstream.core.checkpointing.record import CheckpointRecord, LogKind
from everstream.core.ids import ChannelId, CheckpointNumber, Epoch, ShardId
from everstream.core.plan import Plan, make_plan, shard_counts, spread
from everstream.errors import GraphError, UserError
from everstream.pipeline.stream import Pipeline, Stream
from everstream.state.store import ObjectRef


def source(shards: int = 1, name: str = "test") -> Stream:
    return Pipeline(name).source(Range(10), name="numbers", shards=shards)


def chains(stream: Stream, workers: int = 1) -> list[tuple[str, ...]]:
    plan = make_plan(stream.collect(name="out"), workers)
    return [chain.operators for chain in plan.chains.values()]


def same(x: Any) -> Any:
    return x


# Fusing.


def test_plain_edges_between_equal_shard_counts_are_fused() -> None:
    stream = source(shards=2).map(same, name="a").filter(same, name="b")
    assert chains(stream) == [("numbers", "a", "b", "out")]


def test_another_shard_count_starts_a_chain() -> None:
    assert chains(source().map(same, name="a", shards=2)) == [("numbers",), ("a", "out")]


def test_on_demand_said_aloud_keeps_operators_apart() -> None:
    assert chains(source().on_demand().map(same, name="a")) == [("numbers",), ("a", "out")]


def test_a_key_needs_a_channel_unless_there_is_one_shard_on_each_side() -> None:
    one = source().key_by(same).fold(init=int, update=max, name="a")
    two = source(shards=2).key_by(same).fold(init=int, update=max, name="a")
    assert chains(one) == [("numbers", "a", "out")]
    assert chains(two) == [("numbers",), ("a", "out")]


def test_a_broadcast_is_never_fused() -> None:
    assert chains(source().broadcast().map(same, name="a")) == [("numbers",), ("a", "out")]


def test_where_streams_meet_a_chain_starts_and_a_branch_is_a_tree_in_one_chain() -> None:
    left, right = source().branch(bool, name="branch")
    both = left.map(same, name="a").union(right.map(same, name="b")).map(same, name="c")
    assert chains(both) == [("numbers", "branch", "a", "b"), ("c", "out")]


def test_channels_join_every_shard_of_both_sides() -> None:
    plan = make_plan(source(shards=2).map(same, name="a", shards=3).collect(name="out"), 2)
    assert len(plan.channels) == 6
    assert plan.outputs[ShardId("numbers", 1)] == [
        ChannelId(0, ShardId("numbers", 1), ShardId("a", index)) for index in range(3)
    ]
    assert len(plan.inputs[ShardId("a", 2)]) == 2
    assert not plan.fused(plan.graph.edges[0]) and plan.fused(plan.graph.edges[1])


# Placing.


def test_shards_of_one_chain_go_to_different_workers_and_workers_are_filled_evenly() -> None:
    plan = make_plan(source(shards=3).map(same, name="a", shards=2).collect(name="out"), 3)
    assert [len(worker) for worker in plan.workers] == [2, 2, 1]
    for worker in plan.workers:
        assert len({shard.operator for shard in worker}) == len(worker)
    assert all(shard in plan.workers[plan.worker_of[shard]] for shard in plan.shards)


def test_fewer_workers_take_more_shards_and_empty_workers_are_left_out() -> None:
    stream = source(shards=3).map(same, name="a", shards=2).collect(name="out")
    assert [len(worker) for worker in make_plan(stream, 1).workers] == [5]
    assert len(make_plan(stream, 20).workers) == 5


def test_the_plan_finds_sources_sinks_and_what_feeds_an_ordered_sink() -> None:
    stream = source().on_demand().map(same, name="a", shards=2)
    plan = make_plan(stream.on_demand().collect(name="out", ordered=True), 2)
    assert plan.source_shards() == [ShardId("numbers", 0)]
    assert plan.sink_shards() == [ShardId("out", 0)]
    assert plan.order_matters() == {"numbers", "a", "out"}


def test_a_shard_is_found_by_any_operator_of_its_chain() -> None:
    plan = make_plan(source(shards=2).map(same, name="a").collect(name="out"), 1)
    assert plan.shard_for("out", 1) == ShardId("numbers", 1)


def test_asking_for_a_shard_that_is_not_there_says_what_is() -> None:
    plan = make_plan(source().map(same, name="a").collect(name="out"), 1)
    with pytest.raises(UserError, match="no operator 'b'; this pipeline has: numbers, a, out"):
        plan.shard_for("b")
    with pytest.raises(UserError, match=r"has 1 shard\(s\), numbered from 0; there is no shard 1"):
        plan.shard_for("a", 1)
    with pytest.raises(UserError, match="there is no shard -1"):
        plan.shard_for("a", -1)


def test_a_wrong_graph_fails_before_it_is_planned() -> None:
    with pytest.raises(GraphError, match="its output goes nowhere"):
        stream = source()
        stream.map(same, name="a")
        make_plan(stream.collect(), 1)


# Manifests.


def planned(stream: Stream) -> Plan:
    return make_plan(stream.collect(name="out"), 1)


def full_record() -> CheckpointRecord:
    return CheckpointRecord(
        shard=ShardId("my.op-1", 3),
        number=Epoch(7),
        operators=("my.op-1", "out"),
        objects=(ObjectRef.of("a", b"one"), ObjectRef.of("b", b"two")),
        final=True,
        previous=CheckpointNumber(6),
        received={"0/a:0->b:1": 5},
        sent={"1/b:1->c:0": 9},
        ended=("0/a:0->b:1",),
        ordinal=12,
        counts={"out": (3, 4)},
        variables={"clock": [1, 2]},
        capture_s=0.25,
        upload_s=0.5,
        size_bytes=6,
    )


def test_a_manifest_survives_json() -> None:
    record = full_record()
    manifest = EpochManifest(
        Epoch(7), {record.shard: record}, "test", True, 1.5, 0.25, {"my.op-1": 4}
    )
    body = json.loads(json.dumps(manifest.to_json()))
    assert EpochManifest.from_json(body) == manifest
    assert [ObjectRef.from_json(ref) for ref in body["objects"]] == list(record.objects)
    assert manifest.size_bytes == 6


def test_an_object_two_records_share_is_named_once() -> None:
    first = full_record()
    second = CheckpointRecord(ShardId("b", 0), CheckpointNumber(7), ("b",), objects=first.objects)
    body = EpochManifest(Epoch(7), {r.shard: r for r in (first, second)}).to_json()
    assert len(body["objects"]) == 2


def test_a_manifest_fits_its_own_pipeline() -> None:
    plan = planned(source(shards=2).map(same, name="a"))
    check_fits(EpochManifest(Epoch(1), {}, "test", shard_counts=shard_counts(plan)), plan)


def test_a_manifest_of_another_pipeline_does_not_fit() -> None:
    with pytest.raises(UserError, match=r"checkpoints of pipeline 'other', not of 'test'.*--fresh"):
        check_fits(EpochManifest(Epoch(1), {}, "other"), planned(source()))


@pytest.mark.parametrize("now", ["none", "memory"])
def test_checkpoints_with_logs_do_not_fit_a_run_without_or_with_others(now: LogKind) -> None:
    plan = planned(source())
    manifest = EpochManifest(Epoch(1), {}, "test", log="durable")
    check_fits(manifest, plan, "durable")
    with pytest.raises(UserError, match=r"with durable message logs.*--fresh"):
        check_fits(manifest, plan, now)
    check_fits(replace(manifest, final=True), plan, now)


@pytest.mark.parametrize("log", ["none", "durable"])
def test_a_graph_that_was_changed_around_frames_on_their_way_does_not_fit(log: LogKind) -> None:
    before = planned(source().on_demand().map(same, name="a"))
    records = {
        shard: CheckpointRecord(
            shard,
            Epoch(1),
            before.chains[shard.operator].operators,
            holds_frames=True,
            received={str(channel): 1 for channel in before.inputs[shard]},
            sent={str(channel): 1 for channel in before.outputs[shard]},
        )
        for shard in before.shards
    }
    manifest = EpochManifest(Epoch(1), records, "test", log=log)
    check_fits(manifest, before, log)
    moved = planned(source().on_demand().map(same, name="new").on_demand().map(same, name="a"))
    with pytest.raises(UserError, match=r"changed around operator .*in flight"):
        check_fits(manifest, moved, log)
    if log == "none":
        empty = {s: replace(record, holds_frames=False) for s, record in records.items()}
        check_fits(replace(manifest, records=empty), moved)


def test_an_operator_that_moved_in_the_graph_keeps_its_state() -> None:
    before = planned(source().map(same, name="a").on_demand().map(same, name="b"))
    line = {
        shard: CheckpointRecord(shard, CheckpointNumber(1), before.chains[shard.operator].operators)
        for shard in before.shards
    }
    assert [chain.operators for chain in before.chains.values()] == [("numbers", "a"), ("b", "out")]
    after = planned(source().on_demand().map(same, name="b").on_demand().map(same, name="a"))
    found = records_for(after, line)
    numbers, b = line[ShardId("numbers", 0)], line[ShardId("b", 0)]
    assert found[ShardId("numbers", 0)] == (numbers,)
    assert found[ShardId("b", 0)] == (b,)
    assert found[ShardId("a", 0)] == (numbers, b), "a from one, out from the other"


def test_an_unchanged_chain_restores_from_its_own_record_alone() -> None:
    plan = planned(source(shards=2).map(same, name="a"))
    line = {
        s: CheckpointRecord(s, CheckpointNumber(1), plan.chains["numbers"].operators)
        for s in plan.shards
    }
    assert records_for(plan, line) == {shard: (line[shard],) for shard in plan.shards}
    assert records_for(plan, {}) == dict.fromkeys(plan.shards, ())


def test_ids_are_found_again_in_their_text() -> None:
    shard = ShardId("a:b", 3)
    assert ShardId.parse(str(shard)) == shard


def test_spreading_a_plan_over_more_workers_checks_no_source_again() -> None:
    checks: list[int] = []

    class Checked(Range):
        def check(self) -> None:
            checks.append(1)

    pipeline = Pipeline("test")
    pipeline.source(Checked(10), shards=2).on_demand().map(lambda x: x, shards=3).collect()
    once = make_plan(pipeline, workers=1)
    again = spread(once, workers=3)
    assert (len(checks), len(once.workers), len(again.workers)) == (1, 1, 3)
    assert again.workers == make_plan(pipeline, workers=3).workers
    assert again.channels == once.channels
