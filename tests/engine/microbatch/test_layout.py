"""A graph becomes a line of stages, whatever it looks like."""

import everstream as es
from everstream.core.plan import make_plan
from everstream.engine.microbatch.layout import Layout


def layout_of(pipeline: es.Pipeline) -> Layout:
    return Layout(make_plan(pipeline, 1))


def test_a_chain_is_one_level_behind_the_last_of_its_senders() -> None:
    pipeline = es.Pipeline("levels")
    first = pipeline.source(es.Range(9), name="first")
    second = pipeline.source(es.Range(9), name="second", shards=2)
    keyed = first.key_by(lambda x: x).map(lambda x: x, name="once", shards=3)
    keyed.union(second).key_by(lambda x: x).map(lambda x: x, name="both", shards=2).collect()
    layout = layout_of(pipeline)
    assert [layout.chains_at(level) for level in range(3)] == [
        ["first", "second"],
        ["once"],
        ["both"],
    ]
    assert [len(shards) for shards in layout.levels] == [3, 3, 2]


def test_every_channel_leads_to_a_later_level_and_rows_find_their_way_there() -> None:
    pipeline = es.Pipeline("skips")
    numbers = pipeline.source(es.Range(9), name="numbers", shards=3)
    far = numbers.key_by(lambda x: x).map(lambda x: x, name="near", shards=2)
    far.union(numbers).key_by(lambda x: x).map(lambda x: x, name="far", shards=2).collect()
    layout = layout_of(pipeline)
    for channel in layout.plan.channels:
        place, target = layout.places[channel.sender], layout.places[channel.receiver]
        assert place.level < target.level
        while place.level + 1 < target.level:
            index = layout.next_partition(place, channel)
            place = type(place)(place.level + 1, index)
            assert index < len(layout.levels[place.level])
        assert layout.next_partition(place, channel) == target.index


def test_an_edge_that_leads_back_makes_no_level() -> None:
    pipeline = es.Pipeline("round")
    numbers = pipeline.source(es.Range(3), name="numbers")
    again = numbers.key_by(lambda x: x).map(lambda x: x, name="again", shards=2)
    again.key_by(lambda x: x).filter(lambda x: False, name="none", shards=3).feedback(to=again)
    again.collect(name="out")
    layout = layout_of(pipeline)
    assert [layout.chains_at(level) for level in range(3)] == [
        ["numbers"],
        ["again"],
        ["none"],
    ]
