"""Keys that are equal are one key, whatever their type, and NaN is one key: calm, and when killed."""

import datetime as dt
import itertools
import pickle
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everstream as es
from everstream.connectors.generate.sources import FromList
from everstream.errors import UserError
from everstream.pipeline.event_time.interval_join import IntervalJoin
from everstream.pipeline.keyed_state.backend_choice import key_group
from everstream.pipeline.keys import Keying, hash_column, hash_keys, stable_hash
from everstream.pipeline.stream import Pipeline
from everstream.pipeline.times import TimeOf
from everstream.state.backends.key_bytes import key_in_bytes, key_of
from everstream.state.backends.memory import MemoryBackend
from everstream.state.canonical_key import canonical_key
from everstream.state.saved import NAN
from tests.pipeline.sim import Sink, rows_source, simulate

NANS = [float("nan"), -float("nan"), np.float64("nan"), np.float32("nan"), Decimal("NaN")]
ALL_EQUAL: list[list[Any]] = [
    [1, 1.0, True, np.int64(1), np.uint8(1), np.float32(1), np.bool_(True), Decimal("1.00"),
     Fraction(1)],
    [0, 0.0, -0.0, False, np.float64(-0.0), Decimal("-0"), np.int32(0)],
    [1.5, np.float64(1.5), np.float32(1.5), Decimal("1.50"), Fraction(3, 2)],
    [Decimal("0.1"), Decimal("0.10"), Fraction(1, 10)],
    [2**63, 2.0**63, np.uint64(2**63), Decimal(2**63)],
    [2.0**70, 2**70, Decimal(2**70)],
    [float("inf"), np.float64("inf"), Decimal("Infinity")],
    ["a", np.str_("a")],
    [b"a", np.bytes_(b"a")],
    [dt.date(2024, 2, 29), np.datetime64("2024-02-29")],
    [dt.datetime(2024, 2, 29, 1, 2, 3), np.datetime64("2024-02-29T01:02:03"),
     np.datetime64("2024-02-29T01:02:03.000000000")],
    [dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC),
     dt.datetime(2024, 1, 1, 13, tzinfo=dt.timezone(dt.timedelta(hours=1)))],
    [dt.timedelta(seconds=1), np.timedelta64(1, "s")],
    [("a", 1), (np.str_("a"), np.int64(1)), ("a", Decimal(1))],
    [None, np.datetime64("NaT")],
    NANS,
    [("a", nan) for nan in NANS],
]  # fmt: skip


def pairs() -> Iterable[Any]:
    for equal in ALL_EQUAL:
        yield from itertools.combinations(equal, 2)


@pytest.mark.parametrize(("one", "other"), pairs(), ids=repr)
def test_equal_keys_have_one_shard_one_place_in_memory_and_one_on_disk(
    one: Any, other: Any
) -> None:
    assert stable_hash(one) == stable_hash(other)
    assert key_in_bytes(one, key_group) == key_in_bytes(other, key_group)
    assert len({canonical_key(one), canonical_key(other)}) == 1
    keying = Keying(lambda key: key)
    assert len(keying.split([one, other], 97)) == 1
    both = keying.keys([one, other])
    assert both[0] == both[1] or both[0] is both[1]


@pytest.mark.parametrize("equal", ALL_EQUAL, ids=lambda equal: repr(equal[0]))
def test_equal_keys_have_equal_hashes_in_columns_of_any_type(equal: list[Any]) -> None:
    keys = [canonical_key(key) for key in equal]
    assert len({*hash_keys(keys).tolist()}) == 1


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9),
                   max_value=10**9))  # fmt: skip
def test_a_decimal_has_the_hash_of_the_number_it_is_equal_to(number: Decimal) -> None:
    if number == int(number):
        assert stable_hash(number) == stable_hash(int(number))
    if Decimal(float(number)) == number:
        assert stable_hash(number) == stable_hash(float(number))
    column = pl.Series([number], dtype=pl.Decimal(38, 6))
    assert hash_column(column).tolist() == hash_keys([number]).tolist()
    assert key_of(key_in_bytes(number, key_group)) == number


@pytest.mark.parametrize("kind", [pl.Int8, pl.UInt64, pl.Int128, pl.Float32, pl.Float64,
                                  pl.Decimal(20, 4)])  # fmt: skip
def test_a_number_has_one_hash_in_columns_of_any_type(kind: Any) -> None:
    expected = hash_column(pl.Series([0, 1, 100, None], dtype=pl.Int64)).tolist()
    assert hash_column(pl.Series([0, 1, 100, None], dtype=kind)).tolist() == expected


def test_a_number_that_fits_no_64_bits_has_one_hash_in_columns_of_any_type() -> None:
    for number in (2**63, 2**64, 2**80, -(2**63), -(2**90)):
        wide = hash_column(pl.Series([number], dtype=pl.Int128)).tolist()
        assert hash_column(pl.Series([float(number)])).tolist() == wide


def test_the_nan_of_keys_is_itself_again_after_a_checkpoint() -> None:
    store = MemoryBackend[Any, int]()
    store.put(canonical_key(("a", float("nan"))), 1)
    (key,) = pickle.loads(pickle.dumps(dict(store.pairs())))
    assert key[1] is NAN and canonical_key(key) in store


@pytest.mark.parametrize("key", [np.datetime64("2024-01-01T00:00:00.000000001"), dt.time(tzinfo=dt.UTC),
                                 Decimal("1E+20000")], ids=repr)  # fmt: skip
def test_a_key_that_has_no_canonical_form_is_refused_in_words(key: Any) -> None:
    with pytest.raises(UserError, match="a key is"):
        stable_hash(key)


MIXED = [NANS[n % 5] if n % 3 == 0 else (np.float64(1.5), 1.5, Decimal("1.5"))[n % 3] for n in range(60)]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_a_fold_by_nan_has_one_count_whatever_is_killed(seed: int) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        keyed = pipeline.source(FromList(MIXED, batch=3), name="numbers").key_by(lambda x: x)
        counts = keyed.fold(init=int, update=lambda n, _: n + 1, shards=2)
        sink(counts.map(lambda pair: (str(float(pair[0])), pair[1])), "out")

    nans = sum(value != value for value in MIXED)
    expected = [("nan", n + 1) for n in range(nans)]
    expected += [("1.5", n + 1) for n in range(len(MIXED) - nans)]
    simulate(build, {"out": expected}, seed)


@pytest.mark.parametrize("seed", range(8))
def test_running_aggregates_and_sessions_by_nan_have_one_group_whatever_is_killed(
    seed: int,
) -> None:
    frame = pl.DataFrame({"k": [float("nan") if n % 3 else 2.5 for n in range(60)], "t": range(60)})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        source = pipeline.source(rows_source(frame, 4), name="rows")
        readable = pl.col("k").cast(pl.String)
        running = source.key_by("k").aggregate(n=es.count(), emit="record", shards=2)
        sink(running.select(readable, "n"), "running")
        changes = source.key_by("k").aggregate(n=es.count(), name="changing", shards=2)
        sink(changes.filter(pl.col("n") > 38).select(readable, "n"), "changes")
        timed = source.event_time("t", unit="us")
        sessions = timed.key_by("k").window(es.Session(1e-3)).aggregate(n=es.count(), shards=2)
        sink(sessions.select(readable, "n"), "sessions")

    nans = [("NaN", n + 1) for n in range(40)]
    others = [("2.5", n + 1) for n in range(20)]
    expected = {
        "running": nans + others,
        "changes": [("NaN", 40)],
        "sessions": [("NaN", 40), ("2.5", 20)],
    }
    simulate(build, expected, seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_join_pairs_nan_with_nan_and_whole_numbers_with_floats(seed: int) -> None:
    nan = float("nan")
    left = pl.DataFrame({"k": [nan, 1.0, None, 2.5], "t": [1, 2, 3, 4], "l": [1, 2, 3, 4]})
    right = pl.DataFrame({"k": [1, None, 3], "t": [1, 2, 3], "r": [1, 2, 3]})
    nans = pl.DataFrame({"k": [nan, None], "t": [5, 6], "r": [4, 5]})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        one = pipeline.source(rows_source(left, 2), name="left").event_time("t", unit="us")
        two = pipeline.source(rows_source(right, 2), name="right").event_time("t", unit="us")
        three = pipeline.source(rows_source(nans, 2), name="third").event_time("t", unit="us")
        window = es.Tumbling(1e-3)
        sink(one.window_join(two, on="k", window=window, shards=3).select("l", "r"), "numbers")
        near = one.interval_join(three, on="k", between=(-1, 1), shards=2)
        sink(near.select("l", "r"), "nans")

    simulate(build, {"numbers": [(2, 1)], "nans": [(1, 4)]}, seed)


def test_a_join_of_types_that_cannot_be_compared_is_refused_by_name() -> None:
    time = {"left": TimeOf("t", "s"), "right": TimeOf("t", "s")}
    join = IntervalJoin({"left": ["k"], "right": ["k"]}, time, 0, 1)
    left, right = pl.DataFrame({"k": [2**60 + 1]}), pl.DataFrame({"k": [0.5]})
    with pytest.raises(UserError, match="'near' joins on column 'k', which is Int64"):
        join.joined(left, right, "near")
