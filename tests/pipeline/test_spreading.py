"""State that goes to another number of shards: every entry to its place, and only there."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import polars as pl
import pytest

import everstream as es
from everstream.core.plan import Plan, make_plan
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Place, redistribute_entries
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context, Operator
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend


def place(shard: int, shards: int, before: int, selector: Any = lambda key: key) -> Place:
    keying = {"": Keying(selector)}
    return Place("op", shard, shards, before, keying, keying)


def parts_of(keys: Sequence[Any], before: int) -> dict[int, dict[Any, Any]]:
    parts: dict[int, dict[Any, Any]] = {number: {} for number in range(before)}
    for key, shard in zip(keys, Keying(lambda k: k).shards_of(keys, before).tolist(), strict=True):
        parts[shard][key] = f"value of {key}"
    return parts


@pytest.mark.parametrize(("before", "now"), [(1, 3), (2, 3), (3, 2), (4, 1), (5, 8)])
def test_entries_by_key_go_where_their_records_go(before: int, now: int) -> None:
    keys = [*range(200), *(f"k{n}" for n in range(200)), None, 2.5, (1, "a")]
    parts = parts_of(keys, before)
    keying, together = Keying(lambda key: key), {}
    for shard in range(now):
        mine = redistribute_entries("key", parts, place(shard, now, before), "state")
        assert set(keying.shards_of(list(mine), now).tolist()) <= {shard}
        assert not together.keys() & mine.keys()
        together |= mine
    assert together == {key: f"value of {key}" for key in keys}


def test_entries_under_other_keys_than_the_records_are_refused_with_the_fix() -> None:
    parts = {0: {("other", n): n for n in range(50)}, 1: {}}
    with pytest.raises(es.UserError, match=r"keys that are not the keys of its records.*spread="):
        redistribute_entries("key", parts, place(0, 3, 2), "seen")


def test_split_entries_go_to_one_shard_each_and_union_and_broadcast_to_all() -> None:
    parts = {0: {"a": 1, "b": 2}, 1: {"c": 3}}
    shares = [redistribute_entries("split", parts, place(n, 2, 2), "s") for n in range(2)]
    assert Counter(key for share in shares for key in share) == {"a": 1, "b": 1, "c": 1}
    for shard in range(2):
        assert redistribute_entries("union", parts, place(shard, 2, 2), "s") == {
            "a": 1,
            "b": 2,
            "c": 3,
        }
        same = {0: {"limit": 7}, 1: {"limit": 7}}
        assert redistribute_entries("broadcast", same, place(shard, 2, 2), "s") == {"limit": 7}


def test_entries_that_two_shards_have_cannot_be_split_or_joined() -> None:
    with pytest.raises(es.UserError, match="it is unknown which one counts"):
        redistribute_entries("union", {0: {"n": 1}, 1: {"n": 2}}, place(0, 2, 2), "s")


def test_state_of_which_nothing_is_said_is_refused_only_if_there_is_any() -> None:
    assert redistribute_entries(None, {0: {}, 1: {}}, place(0, 2, 2), CONTEXT_STATE) == {}
    with pytest.raises(es.UserError, match="spread ="):
        redistribute_entries(None, {0: {"n": 1}}, place(0, 2, 1), CONTEXT_STATE)


class Played:
    """An operator of a pipeline, shard by shard, without an engine."""

    def __init__(self, pipeline: es.Pipeline, name: str) -> None:
        self.pipeline, self.name = pipeline, name

    def plan(self, shards: int) -> Plan:
        return make_plan(self.pipeline, 1, {self.name: shards})

    def run(
        self,
        shards: int,
        batches: Sequence[Any],
        states: Mapping[int, dict[Any, Any]] | None = None,
    ) -> tuple[list[Any], dict[int, dict[Any, Any]]]:
        """What comes out of these batches (or watermarks), and what each shard keeps then."""
        graph = self.plan(shards).graph
        (edge,) = graph.inputs(self.name)
        keying: Keying = edge.routing.keying  # type: ignore[union-attr]
        out: list[Any] = []
        kept: dict[int, dict[Any, Any]] = {}
        for shard in range(shards):
            store: StateBackend[Any, Any] = MemoryBackend()
            store.load(dict((states or {}).get(shard, {})))
            operator: Any = self.operator
            ctx = Context(self.name, shard, shards, store, keying)
            operator.on_start(ctx)
            for batch in batches:
                if isinstance(batch, int):
                    ctx.watermark = batch
                    operator.on_watermark(batch, ctx)
                else:
                    part = dict(keying.split(batch, shards)).get(shard)
                    if part is not None:
                        operator.process_batch(part, ctx)
            out += [row for _, emitted in ctx.take_emitted() for row in emitted.to_dicts()]
            kept[shard] = dict(store.items())
        return out, kept

    @property
    def operator(self) -> Operator:
        operator: Operator = cloudpickle.loads(
            cloudpickle.dumps(self.pipeline.graph.nodes[self.name].what)
        )
        return operator

    def redistribute(
        self, kept: Mapping[int, dict[Any, Any]], now: int
    ) -> dict[int, dict[Any, Any]]:
        (edge,) = self.plan(now).graph.inputs(self.name)
        keying = {edge.side: edge.routing.keying}  # type: ignore[union-attr]
        parts = {number: {CONTEXT_STATE: entries} for number, entries in kept.items()}
        return {
            shard: self.operator.redistribute(
                parts, Place(self.name, shard, now, len(kept), keying, keying)
            )[CONTEXT_STATE]
            for shard in range(now)
        }


def totals(rows: Sequence[Mapping[str, Any]]) -> Counter[Any]:
    return Counter(tuple(sorted(row.items())) for row in rows)


@pytest.mark.parametrize(("before", "now"), [(1, 3), (3, 2), (2, 5)])
@pytest.mark.parametrize("emit", ["changes", "record"])
def test_running_aggregates_go_on_in_other_shards(before: int, now: int, emit: Any) -> None:
    rows = [{"k": n % 37, "x": float(n) if n % 5 else None, "n": n} for n in range(400)]
    pipeline = es.Pipeline("sums")
    keyed = pipeline.source(es.FromList(rows)).key_by("k")
    wanted = {"c": es.count(), "s": es.sum("x"), "low": es.min("n"), "high": es.max("x")}
    summed = keyed.aggregate(**wanted, emit=emit, name="sums")
    summed.collect()
    played = Played(pipeline, "sums")
    batches = _parts(pipeline, "sums", rows)
    whole, _ = played.run(1, batches)
    half = len(batches) // 2
    first, kept = played.run(before, batches[:half])
    second, _ = played.run(now, batches[half:], played.redistribute(kept, now))
    assert totals([*first, *second]) == totals(whole)


@pytest.mark.parametrize("window", [es.Tumbling("10ms"), es.Sliding("20ms", "5ms")])
def test_windows_that_shards_fired_unequally_fire_once_in_all(window: Any) -> None:
    rows = [{"k": n % 7, "t": n // 4} for n in range(400)]
    pipeline = es.Pipeline("windows")
    timed = pipeline.source(es.FromList(rows)).event_time("t", unit="ms")
    timed.key_by("k").window(window).aggregate(n=es.count(), name="counted").collect()
    played = Played(pipeline, "counted")
    batches = _parts(pipeline, "counted", rows)
    early, end = 40_000, 200_000
    whole, _ = played.run(1, [*batches, early, end])
    nothing, kept = played.run(2, batches)
    fired, further = played.run(2, [early], kept)
    # One of the two has heard of more time than the other.
    shown = [row for row in fired if _place_of(played, row, 2) == 0]
    unequal = {0: further[0], 1: kept[1]}
    rest, _ = played.run(3, [early, end], played.redistribute(unequal, 3))
    assert not nothing
    assert 0 < len(shown) < len(fired)
    assert totals([*shown, *rest]) == totals(whole)


def _place_of(played: Played, row: Mapping[str, Any], shards: int) -> int:
    """Rows of parts are keyed by all columns that are no parts."""
    (edge,) = played.plan(shards).graph.inputs(played.name)
    keying: Keying = edge.routing.keying  # type: ignore[union-attr]
    return int(keying.shards_of([(row["k"],)], shards)[0])


def _parts(pipeline: es.Pipeline, name: str, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The batches that reach an operator: local parts of some rows each, if it has any."""
    graph = make_plan(pipeline, 1).graph
    chunks = [pl.DataFrame(rows[at : at + 40]) for at in range(0, len(rows), 40)]
    (edge,) = graph.inputs(name)
    local: Any = graph.nodes[edge.sender].what
    if not edge.sender.endswith("-local"):
        return chunks
    ctx = Context(edge.sender, 0, 1, MemoryBackend())
    local.on_start(ctx)
    for chunk in chunks:
        local.process_batch(chunk, ctx)
    return [batch for output, batch in ctx.take_emitted() if output == "out"]
