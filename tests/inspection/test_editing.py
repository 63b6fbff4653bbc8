"""Savepoints that are changed from Python: exactly what was said, in the shard where it belongs."""

import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.connectors.generate.sources import FromFunction, Range
from everstream.core.registry import PROTOCOLS
from everstream.core.scheme import ALIGNED, Scheme, scheme_of
from everstream.errors import CorruptObject, UserError
from everstream.inspection import SavepointEdit, edit_savepoint, open_store, rewind_to_savepoint
from everstream.inspection.editing import framed, placed, unframed
from everstream.pipeline.aggregation.aggregates import count
from everstream.pipeline.describing import A_FUNCTION
from everstream.pipeline.keys import KEY_GROUPS, Keying
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.storm import scheme_for
from everstream.state.savepoints import savepoint, savepoints_in, take_savepoint
from everstream.state.store import CheckpointStore
from tests.fixtures.make import FOLDER
from tests.fixtures.pipelines import KEY_FILE
from tests.simulation.changing import Build, Changing

RECORDS, KEYS = 400, 5
EXACT = [
    p.name for p in PROTOCOLS.values() if p.choice is not None and scheme_of(p.choice).exactly_once
]
BY_HAND: dict[str, Any] = {"owner": "by hand", "now": 1_700_000_000.0}


MANY = 3 * RECORDS


def counting(*, columns: bool = False, aggregate: bool = False) -> Build:
    def rows(start: int, stop: int) -> pl.DataFrame:
        numbers = range(start, stop)
        names = [f"room {n % KEYS}" for n in numbers]
        return pl.DataFrame({"n": numbers, "room": names, "floor": [n % 2 for n in numbers]})

    def build(pipeline: Pipeline) -> Stream:
        source = Range(RECORDS, batch=2) if not columns else FromFunction(rows, MANY, 2)
        numbers = pipeline.source(source, name="numbers", shards=2)
        if aggregate:
            return numbers.key_by("room").aggregate(n=count(), name="count", shards=2)
        keyed = numbers.key_by("room", "floor") if columns else numbers.key_by(lambda n: n % KEYS)
        return keyed.fold(init=int, update=lambda had, _: had + 1, name="count", shards=2)

    return build


def stopped(build: Build, scheme: Scheme = ALIGNED) -> tuple[Changing, CheckpointStore]:
    """A run that was stopped in the middle, and its store with the savepoint `before`."""
    world = Changing(build, 0, scheme).stop_at(3)
    store = CheckpointStore(world.world.disk)
    take_savepoint(store, "before", now=1.0)
    return world, store


def gone_on(world: Changing, store: CheckpointStore, name: str) -> Counter[Any]:
    """What is shown after going back to a savepoint, in addition to what was before."""
    before = world.shown()
    rewind_to_savepoint(store, name, **BY_HAND)
    return world.finish() - before


@pytest.mark.parametrize("protocol", EXACT)
def test_under_every_protocol_a_run_goes_on_from_what_was_edited_and_loses_nothing(
    protocol: str,
) -> None:
    world, store = stopped(counting(), scheme_for(protocol, 0))
    before = world.shown()
    with SavepointEdit(store, "before") as edit:
        counts = edit.state("count")
        counts.map(lambda key, had: had + 1000)
        edit.save("patched")
    assert [kept.name for kept in savepoints_in(store)] == ["before", "patched"]
    rewind_to_savepoint(store, "patched", **BY_HAND)
    after = world.finish() - before
    # What was counted before the savepoint and came out behind it has the old numbers.
    numbers = Counter((key, n - 1000 if n > 1000 else n) for key, n in after.elements())
    totals = Counter(n % KEYS for n in range(RECORDS))
    assert before + numbers == Counter(
        (key, n + 1) for key, total in totals.items() for n in range(total)
    )
    assert any(n > 1000 for _, n in after)


def test_new_keys_come_to_the_shard_that_gets_their_records() -> None:
    world, store = stopped(counting(columns=True))
    with SavepointEdit(store, "before") as edit:
        counts = edit.state("count")
        frame = counts.frame()
        assert frame.columns == ["key_0", "key_1", "value"]
        with pytest.raises(KeyError):
            counts.delete(("room 0", 7))
        counts.delete(("room 0", 0))
        assert ("room 0", 0) not in counts and len(counts) == frame.height - 1
        counts.put_frame(frame.with_columns(value=pl.lit(500)))
        counts.put(("room 9", 1), 7)
        assert counts["room 0", 0] == 500
        edit.save("patched")
    after = gone_on(world, store, "patched")
    assert {n for (_, n) in after} and min(n for _, n in after) == 501, "each key from 500 on"
    again = SavepointEdit(store, "patched").state("count")
    assert again["room 9", 1] == 7
    assert {key: n for key, n in again.items() if key != ("room 9", 1)} == dict.fromkeys(
        ((f"room {r}", f) for r in range(KEYS) for f in (0, 1)), 500
    )


def test_a_frame_is_all_there_is_unless_others_are_kept() -> None:
    _, store = stopped(counting())
    edit = SavepointEdit(store, "before")
    counts = edit.state("count")
    had = dict(counts.items())
    counts.put_frame(pl.DataFrame({"key": [1], "value": [0]}), keep_others=True)
    assert dict(counts.items()) == {**had, 1: 0}
    counts.put_frame(pl.DataFrame({"key": [2, 77], "value": [5, 6]}))
    assert dict(counts.items()) == {2: 5, 77: 6}
    edit.save("few")
    assert dict(SavepointEdit(store, "few").state("count").items()) == {2: 5, 77: 6}
    assert dict(SavepointEdit(store, "before").state("count").items()) == had


def test_what_cannot_be_exact_is_refused_and_changes_nothing() -> None:
    _, store = stopped(counting())
    edit = SavepointEdit(store, "before")
    counts = edit.state("count")
    had = counts.items()

    def fails(key: int, value: int) -> int:
        return 1 // (key - 3)

    with pytest.raises(ZeroDivisionError):
        counts.map(fails)
    for frame, says in {
        "twice": (pl.DataFrame({"key": [1, 1], "value": [1, 2]}), "the key 1 more than once"),
        "columns": (pl.DataFrame({"keys": [1], "value": [1]}), "needs the columns 'key'"),
    }.values():
        with pytest.raises(UserError, match=says):
            counts.put_frame(frame)
    with pytest.raises(UserError, match=r"no operator 'total'.*it has: numbers, count, out"):
        edit.state("total")
    with pytest.raises(UserError, match="has no state 'seen'"):
        edit.state("count", "seen")
    with pytest.raises(UserError, match="already a savepoint 'before'"):
        edit.save("before")
    assert counts.items() == had
    counts.map(lambda key, value: (value, "text"))
    with pytest.raises(UserError, match=r"cannot hold it exactly.*Use map"):
        counts.frame()


def test_what_an_operator_keeps_in_a_form_of_its_own_is_refused() -> None:
    _, store = stopped(counting(columns=True, aggregate=True))
    with pytest.raises(UserError, match=r"'count' .aggregates. keeps its state in its own format"):
        SavepointEdit(store, "before").state("count")


def test_keys_that_are_not_those_of_the_stream_can_be_changed_but_not_added(
    tmp_path: Path,
) -> None:
    with tarfile.open(FOLDER / "0.1.0" / "state.tar.gz") as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    take_savepoint(CheckpointStore.at(str(tmp_path / "store")), "before", now=1.0)
    edit = edit_savepoint(tmp_path / "store", "before")
    with pytest.raises(UserError, match=r"name the state of 'remember'.*ctx.state, frames, seen"):
        edit.state("remember")
    last = edit.state("remember", "ctx.state")
    last.map(lambda key, value: {**value, "record": -1})
    with pytest.raises(UserError, match="its keys are not those of the stream"):
        last.put(("last", 99), {})
    edit.state("remember", "seen").put(99, [])
    edit.save("patched")
    found = edit_savepoint(tmp_path / "store", "patched").state("remember", "ctx.state")
    assert {value["record"] for _, value in found.items()} == {-1}


def test_a_signed_store_is_edited_with_its_key(tmp_path: Path) -> None:
    with tarfile.open(FOLDER / "0.1.0" / "signed.tar.gz") as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    store, key = tmp_path / "store", str(tmp_path / KEY_FILE)
    take_savepoint(open_store(store, key), "before", now=1.0)
    with edit_savepoint(store, "before", store_key=key) as edit:
        edit.state("count").map(lambda key, n: -n)
        edit.save("patched")
    assert savepoint(open_store(store, key), "patched").edited
    values = edit_savepoint(store, "patched", store_key=key).state("count").items()
    assert values and all(n < 0 for _, n in values)
    shutil.rmtree(store / "savepoints" / "patched" / "objects")
    with pytest.raises(CorruptObject, match="cannot be restored"):
        edit_savepoint(store, "patched", store_key=key)


PLAIN = st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=5), st.booleans(), st.none())
VALUES = st.one_of(PLAIN, st.floats(), st.lists(PLAIN, max_size=3), st.tuples(PLAIN, PLAIN))


@settings(max_examples=200)
@given(st.dictionaries(st.one_of(PLAIN, st.tuples(PLAIN, PLAIN)), VALUES, max_size=6))
def test_a_frame_gives_back_exactly_what_was_put_into_it_or_is_refused(
    state: dict[Any, Any],
) -> None:
    try:
        frame = framed([*state.items()], "it")
    except UserError:
        return
    found = unframed(frame, "it")
    assert [*map(repr, found.items())] == [*map(repr, state.items())]


@settings(max_examples=100)
@given(st.lists(st.integers(-(2**60), 2**60), unique=True, min_size=1), st.integers(1, 7))
def test_keys_are_placed_as_the_routing_places_their_records(keys: list[int], shards: int) -> None:
    for described, selector in ((A_FUNCTION, lambda key: key), ("room", "room")):
        batch: Any = keys if described == A_FUNCTION else pl.DataFrame({"room": keys})
        routed = {
            key: shard
            for shard, part in Keying(selector).split(batch, shards)
            for key in (part if isinstance(part, list) else part["room"].to_list())
        }
        assert placed(keys, described, shards, KEY_GROUPS) == routed
