"""A checkpoint as other numbers of shards see it."""

from dataclasses import replace

import pytest

import everstream as es
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.ids import Epoch, ShardId
from everstream.core.plan import Plan, make_plan, shard_counts
from everstream.core.upgrade.compatibility import fallbacks, going_on
from everstream.core.upgrade.redistribute import is_quiesced, moved, redistribute
from tests.core.redistributing import manifest, plan


def test_new_shards_name_what_the_earlier_ones_have_saved_and_count_on() -> None:
    after = redistribute(manifest(plan(2)), plan(3))
    counting = [after.records[ShardId("count", number)] for number in range(3)]
    for record in counting:
        assert {str(part.shard) for part in record.parts} == {"count:0", "count:1"}
        assert not record.objects
    assert sum(record.counts["count"][0] for record in counting) == 20
    assert {ref.name for ref in counting[2].all_objects} == {"count:0", "count:1"}
    assert EpochManifest.from_json(after.to_json()) == after


def test_nothing_is_moved_if_all_have_the_shards_they_had() -> None:
    assert moved(manifest(plan(3)), plan(3)) == {}
    assert moved(manifest(plan(2)), plan(3)) == {"count": 2}


def test_keys_in_other_groups_move_only_where_that_makes_a_difference() -> None:
    older = replace(manifest(plan(3)), key_groups=None)
    assert moved(older, plan(3)) == {"count": 3}
    assert moved(replace(manifest(plan(2)), key_groups=None), plan(2)) == {}


def test_a_checkpoint_with_records_on_their_way_is_not_settled() -> None:
    whole = manifest(plan(2), log="durable")
    assert is_quiesced(whole)
    sender = whole.records[ShardId("numbers", 0)]
    more = replace(sender, sent=dict.fromkeys(sender.sent, 6))
    assert not is_quiesced(replace(whole, records={**whole.records, sender.shard: more}))
    held = replace(sender, holds_frames=True)
    assert not is_quiesced(
        replace(manifest(plan(2)), records={**whole.records, sender.shard: held})
    )


def test_a_line_that_some_are_missing_from_is_not_settled() -> None:
    whole = manifest(plan(2), log="durable")
    some = {shard: r for shard, r in whole.records.items() if shard != ShardId("count", 1)}
    assert not is_quiesced(replace(whole, records=some))


def test_records_on_their_way_arrive_first_among_the_shards_as_they_were() -> None:
    before = manifest(plan(2))
    record = replace(before.records[ShardId("count", 0)], holds_frames=True)
    found = going_on([replace(before, records={**before.records, record.shard: record})], plan(3))
    assert found.settles is not None
    assert shard_counts(found.settles)["count"] == 2
    assert not found.unwritten
    assert any("are processed first" in note for note in found.notes)


def test_inputs_whose_senders_have_ended_have_ended_for_the_new_shards_too() -> None:
    after = redistribute(manifest(plan(2), final=("numbers:0",)), plan(3))
    for number in range(3):
        assert after.records[ShardId("count", number)].ended == (f"0/numbers:0->count:{number}",)
    assert not redistribute(manifest(plan(2)), plan(3)).records[ShardId("count", 0)].ended


def test_a_shard_has_ended_only_if_all_it_takes_over_from_have() -> None:
    some = redistribute(manifest(plan(2), final=("numbers:0", "count:0")), plan(3))
    assert not any(some.records[ShardId("count", number)].final for number in range(3))
    both = redistribute(manifest(plan(2), final=("numbers:0", "count:0", "count:1")), plan(3))
    assert all(both.records[ShardId("count", number)].final for number in range(3))


def test_state_of_which_nothing_is_said_is_refused_before_anything_starts() -> None:
    with pytest.raises(es.UserError, match=r"'count' cannot go from 2 shard\(s\) to 3.*spread ="):
        going_on([manifest(plan(2, silent=True))], plan(3, silent=True))


def test_the_source_of_an_order_keeps_its_shards_and_those_in_between_do_not() -> None:
    def farm(sources: int, workers: int) -> Plan:
        pipeline = es.Pipeline("test")
        numbers = pipeline.source(es.Range(3), name="numbers", shards=sources)
        work = numbers.on_demand().map(lambda n: n, name="work", shards=workers)
        work.on_demand().sink(es.Collect(), name="out", ordered=True, shards=1)
        return make_plan(pipeline, 2)

    before = manifest(farm(1, 2))
    assert len(redistribute(before, farm(1, 4)).records) == 6
    more = replace(before, shard_counts={**before.shard_counts, "out": 2})
    two = {**more.records, ShardId("out", 1): replace(more.records[ShardId("out", 0)])}
    with pytest.raises(es.UserError, match=r"'out' cannot go from 2.*ordered sink"):
        redistribute(replace(more, records=two), farm(1, 2))


def test_one_can_fall_back_over_a_change_of_shards_and_all_numbers_are_put_right() -> None:
    newest = redistribute(manifest(plan(4)), plan(2))
    older = replace(manifest(plan(2)), epoch=Epoch(6))
    (found,) = fallbacks([newest, older], plan(2), "none")
    record = found.records[ShardId("count", 1)]
    assert record.most_shards["count"] == 4
    assert [str(part.shard) for part in record.parts] == ["count:1"]
