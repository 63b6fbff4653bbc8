"""Keys: the same shard for the same key, on every machine, in every process, in every batch."""

import datetime as dt
import pickle
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstream.errors import UserError
from everstream.pipeline import keys
from everstream.pipeline import keys as text_hash
from everstream.pipeline.batch import Batch, columns_of, records_of
from everstream.pipeline.keyed_state.backend_choice import key_group
from everstream.pipeline.keys import (
    KEY_GROUPS,
    Keying,
    hash_column,
    hash_keys,
    key_selector,
    stable_hash,
)
from everstream.state.backends.key_bytes import is_itself, key_in_bytes
from everstream.state.canonical_key import fields_of

PINNED: list[tuple[Any, int]] = [
    ("", 0),
    ("user-7", 2537939745),
    ("Zürich", 3540756798),
    (0, 3523407757),
    (1, 2768625435),
    (-1, 4278190080),
    (255, 3539857293),
    (256, 920527465),
    (2**64, 2433623096),
    (1.5, 2228768724),
    (float("inf"), 3832315799),
    (b"", 1),
    (b"user-7", 1545154692),
    (None, 3),
    ((), 7),
    (("user", 7), 384097558),
    ((1, (2, None)), 1338821453),
    (True, 2768625435),
]


@pytest.mark.parametrize(("key", "code"), PINNED, ids=repr)
def test_the_hash_of_a_key_never_changes(key: Any, code: int) -> None:
    assert stable_hash(key) == code


COLUMNS: list[tuple[pl.Series, list[int]]] = [
    (pl.Series([0, 1, -1, None]), [0, 6238072747940578789, 13029008266876403067, 3]),
    (pl.Series([2**64 - 1], dtype=pl.UInt64), [13029008266876403067]),
    (pl.Series([1.0, 1.5, -0.0, None]), [6238072747940578789, 16657480027015623784, 0, 3]),
    (pl.Series([True, False]), [6238072747940578789, 0]),
    (pl.Series(["user-7", "", None]), [773176870304997679, 0, 3]),
    (pl.Series([b"user-7"]), [7837789175818318294]),
    (pl.Series(["a", "b"], dtype=pl.Categorical), [13040092938735705047, 7950076453676591027]),
    (pl.Series([dt.date(2024, 2, 29)]), [13145302684044041696]),
    (pl.Series([dt.datetime(2024, 2, 29, 1, 2, 3)]), [11623139933104392913]),
    (pl.Series([{"a": 1, "b": "x"}]), [6462361088159856174]),
]


@pytest.mark.parametrize(("column", "codes"), COLUMNS, ids=lambda c: str(getattr(c, "dtype", "")))
def test_the_hashes_of_a_column_never_change(column: pl.Series, codes: list[int]) -> None:
    assert hash_column(column).tolist() == codes


@given(st.integers(-(2**70), 2**70))
def test_equal_numbers_have_equal_hashes(number: int) -> None:
    if float(number) == number:
        assert stable_hash(number) == stable_hash(float(number))
    assert stable_hash((number, "a")) == stable_hash((number, "a"))


def test_true_is_one_and_false_is_zero() -> None:
    assert stable_hash(True) == stable_hash(1) == stable_hash(1.0)
    assert stable_hash(False) == stable_hash(0) == stable_hash(-0.0)
    assert stable_hash((True, 2.0)) == stable_hash((1, 2))


def test_different_keys_of_one_look_differ() -> None:
    assert len({stable_hash(key) for key in ["1", 1, b"1", 1.5, None, (1,), ("1",)]}) == 7


@pytest.mark.parametrize("key", [[1], {1: 2}, {1, 2}, object(), (1, [2])])
def test_a_key_of_another_type_is_refused_in_words(key: Any) -> None:
    with pytest.raises(
        UserError, match="a key must be a str, bytes, bool, int, float, Decimal, Fraction, date"
    ):
        stable_hash(key)
    with pytest.raises(UserError, match="Return such a value in key_by"):
        Keying(lambda record: key).keys([1, 2])


class Colour(Enum):
    RED = 1


@dataclass(frozen=True)
class Seat:
    row: int
    letter: str
    seen: int = field(default=0, compare=False)


class Cell(NamedTuple):
    row: int
    letter: str


BERN = dt.timezone(dt.timedelta(hours=1))
KINDS: list[tuple[Any, int]] = [
    (dt.date(2024, 2, 29), 843275782),
    (dt.datetime(2024, 2, 29, 1, 2, 3), 676496899),
    (dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC), 1054702817),
    (dt.time(1, 2, 3), 708741007),
    (dt.timedelta(seconds=1.5), 27175404),
    (Decimal("0.1"), 891609420),
    (uuid.UUID(int=7), 2535955446),
    (Colour.RED, 694339688),
    (Seat(12, "c"), 2462474556),
    (Cell(12, "c"), 856476479),
    ((dt.date(2024, 2, 29), Seat(12, "c")), 4161190551),
]


@pytest.mark.parametrize(("key", "code"), KINDS, ids=lambda value: str(value))
def test_dates_decimals_enums_and_records_are_keys_whose_hashes_never_change(
    key: Any, code: int
) -> None:
    assert stable_hash(key) == code
    assert len({stable_hash(other) for other, _ in KINDS}) == len(KINDS)


EQUAL: list[tuple[Any, Any]] = [
    (Decimal("2.00"), 2),
    (Decimal("1.50"), 1.5),
    (Decimal("0.10"), Decimal("0.1")),
    (Decimal("inf"), float("inf")),
    (Cell(12, "c"), (12, "c")),
    (Seat(12, "c", seen=1), Seat(12, "c", seen=2)),
    (
        dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 2, 29, 2, tzinfo=BERN),
    ),
]


@pytest.mark.parametrize(("one", "other"), EQUAL, ids=repr)
def test_keys_that_are_equal_have_equal_hashes_and_bytes_whatever_their_kind(
    one: Any, other: Any
) -> None:
    assert one == other
    assert stable_hash(one) == stable_hash(other)
    assert key_in_bytes(one, key_group) == key_in_bytes(other, key_group)


@pytest.mark.parametrize("key", [uuid.UUID(int=7), Colour.RED, Seat(1, "a")])
def test_a_key_of_another_kind_has_other_bytes_than_what_it_comes_to(key: Any) -> None:
    fields = fields_of(key)
    assert key_in_bytes(key, lambda _: 0) != key_in_bytes(fields, lambda _: 0)
    assert not is_itself(key)


def test_decimals_in_a_column_have_the_hashes_of_the_numbers_they_equal() -> None:
    decimals = pl.Series([Decimal("1.5"), Decimal("-2"), None, Decimal("0.1")])
    numbers = hash_column(pl.Series([1.5, -2.0, None]))
    assert hash_column(decimals)[:3].tolist() == numbers.tolist()
    assert hash_keys(decimals.to_list()).tolist() == hash_column(decimals).tolist()


def test_keys_that_cannot_be_spread_are_refused_with_one_shard_already() -> None:
    with pytest.raises(UserError, match="not frozenset"):
        Keying(lambda record: record).keys([1, 2, frozenset({3})])
    with pytest.raises(UserError, match="column 'tags' of type List"):
        Keying("tags").keys(pl.DataFrame({"tags": [["a"], ["b"]]}))


def test_hashes_do_not_depend_on_the_process() -> None:
    script = (
        "import polars as pl; from everstream.pipeline.keys import *; "
        "print(stable_hash(('user', 7)), hash_column(pl.Series(['user', 'b'])).tolist())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = f"{stable_hash(('user', 7))} {hash_column(pl.Series(['user', 'b'])).tolist()}\n"
    assert outputs == {here}


@given(st.lists(st.one_of(st.none(), st.integers(-(2**53), 2**53)), min_size=1, max_size=20))
def test_equal_numbers_in_columns_of_any_type_have_equal_hashes(values: list[Any]) -> None:
    whole = hash_column(pl.Series(values, dtype=pl.Int64))
    assert whole.tolist() == hash_column(pl.Series(values, dtype=pl.Float64)).tolist()
    alone = [hash_column(pl.Series([value]))[0] for value in values]
    assert whole.tolist() == alone


def test_nulls_have_one_hash_whatever_the_column() -> None:
    types: list[Any] = [pl.Int8, pl.Float32, pl.String, pl.Binary, pl.Boolean, pl.Date, pl.Null]
    types += [pl.Categorical, pl.Struct({"a": pl.Int64})]
    assert len({int(hash_column(pl.Series([None], dtype=kind))[0]) for kind in types}) == 1


def test_a_column_that_cannot_be_a_key_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"cannot use column 'tags' of type List\(Int64\)"):
        hash_column(pl.Series("tags", [[1]]))


def test_an_empty_column_has_no_hashes() -> None:
    for kind in (pl.Int64, pl.String, pl.Float64, pl.Struct({"a": pl.String})):
        assert len(hash_column(pl.Series([], dtype=kind))) == 0


FRAME = pl.DataFrame(
    {
        "user": [f"user-{n % 7}" for n in range(100)],
        "n": range(100),
        "x": [n / 4 for n in range(100)],
        "day": [dt.date(2024, 1, 1) + dt.timedelta(n % 5) for n in range(100)],
        "at": [dt.datetime(2024, 1, 1, n % 24) for n in range(100)],
        "none": [None if n % 3 else "a" for n in range(100)],
    }
)


@pytest.mark.parametrize(
    "selector",
    [
        "user",
        "n",
        "x",
        "day",
        "at",
        "none",
        pl.col("n") % 7,
        pl.struct("user", "day"),
        lambda row: row["user"],
    ],
    ids=lambda selector: "function" if callable(selector) else str(selector),
)
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_a_split_keeps_every_row_its_order_and_its_key_together(selector: Any, shards: int) -> None:
    keying = Keying(selector)
    parts = keying.split(FRAME, shards)
    assert [shard for shard, _ in parts] == sorted({shard for shard, _ in parts})
    assert all(0 <= shard < shards for shard, _ in parts)
    homes: dict[Any, int] = {}
    for shard, part in parts:
        assert isinstance(part, pl.DataFrame) and part["n"].is_sorted() and part.height
        for key in keying.keys(part):
            assert homes.setdefault(key, shard) == shard
    assert sorted(n for _, part in parts for n in rows(part, "n")) == list(range(100))


def rows(batch: Batch, column: str) -> list[Any]:
    return [row[column] for row in records_of(batch)]


@pytest.mark.parametrize("selector", ["user", "n", "day", "none", pl.struct("user", "n")])
def test_rows_and_dicts_of_the_same_content_go_to_the_same_shards(selector: Any) -> None:
    as_rows = Keying(selector).split(FRAME, 3)
    as_dicts = Keying(selector).split(FRAME.rows(named=True), 3)
    assert [(s, rows(part, "n")) for s, part in as_rows] == [
        (s, rows(part, "n")) for s, part in as_dicts
    ]


def test_a_key_goes_to_one_shard_whichever_batch_it_comes_in() -> None:
    keying = Keying("k")
    mixed = {shard for shard, _ in keying.split([{"k": 3}, {"k": 3.0}, {"k": 3}], 7)}
    assert mixed == {keying.split([{"k": 3}], 7)[0][0]} == {keying.split([{"k": 3.0}], 7)[0][0]}
    nulls = {
        s
        for batch in ([{"k": None}], [{"k": None}, {"k": None}])
        for s, _ in keying.split(batch, 7)
    }
    assert len(nulls) == 1


def test_one_keyed_stream_can_feed_operators_of_different_widths() -> None:
    keying = Keying(lambda x: x)
    for shards in (7, 2, 3):
        for shard, part in keying.split(list(range(50)), shards):
            assert shard < shards
            assert all(stable_hash(x) % KEY_GROUPS % shards == shard for x in part)


def test_the_cache_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_CACHE_LIMIT", 10)
    keying = Keying(lambda x: x)
    first = keying.split(list(range(1000)), 3)
    assert all(len(cache) <= 10 for cache in keying._cache.values())
    assert keying.split(list(range(1000)), 3) == first


def test_keys_are_spread_over_the_shards() -> None:
    for column in (pl.Series(range(10_000)), pl.Series([f"user-{n}" for n in range(10_000)])):
        counts = np.bincount((hash_column(column) % np.uint64(8)).astype(int), minlength=8)
        assert counts.min() > 1000
    assert min(Counter(stable_hash(n) % 8 for n in range(10_000)).values()) > 1000


def test_compound_keys_can_be_looked_up() -> None:
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", None]})
    assert Keying(key_selector("a", ["b"])).keys(frame) == [(1, "x"), (2, None)]
    nested = frame.select(pl.struct("a", pl.struct("b").alias("s")).alias("k"))
    assert Keying("k").keys(nested) == [(1, ("x",)), (2, (None,))]


def test_a_keying_travels_without_its_cache() -> None:
    keying = Keying("user")
    keying.split([{"user": "a"}], 2)
    back = pickle.loads(pickle.dumps(keying))
    assert back.selector == "user" and back._cache == {}


def test_key_by_takes_a_function_a_column_or_an_expression() -> None:
    assert key_selector("a", []) == "a"
    assert isinstance(key_selector("a", ["b"]), pl.Expr)
    with pytest.raises(UserError, match="key_by takes a function, a column name or a Polars"):
        key_selector(7, [])
    with pytest.raises(UserError, match="'key_by' works on columns, but got records of type int"):
        Keying("a").keys([1, 2])


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=6)), max_size=60),
    st.integers(0, 5),
    st.sampled_from([1, 3, 8_192]),
)
def test_texts_hashed_at_once_have_the_hashes_of_each(
    texts: list[str | None], first: int, block: int
) -> None:
    column = pl.Series("key", texts, pl.String)[first:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_hash, "BLOCK", block)
        patch.setattr(keys, "_FEW_TEXTS", 0)
        codes = hash_column(column)
        binary = hash_column(column.cast(pl.Binary))
    each = [hash_column(pl.Series([text], dtype=pl.String))[0] for text in texts[first:]]
    assert codes.tolist() == each
    plain = text_hash.crc32_column(column, 0)
    assert plain is not None
    assert plain.tolist() == [stable_hash(text or "") for text in texts[first:]]
    expected = [
        hash_column(pl.Series([text], dtype=pl.Binary))[0] for text in column.cast(pl.Binary)
    ]
    assert binary.tolist() == expected


def test_long_texts_have_the_hashes_of_short_ones_beside_them() -> None:
    texts = ["a", "b" * 100, "", "Zürich", "a"]
    short = [text for text in texts if len(text) < 20]
    together = hash_column(pl.Series(texts)).tolist()
    alone = iter(hash_column(pl.Series(short)).tolist())
    assert [code for code, text in zip(together, texts, strict=True) if len(text) < 20] == [*alone]
    assert text_hash.crc32_column(pl.Series(texts), 0) is None


@pytest.mark.parametrize("values", [[1, 2, 3, 4, 5, None], [7] * 6, []])
def test_small_frames_are_split_as_large_ones_are(
    values: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pl.DataFrame(
        {"key": values, "n": range(len(values))}, schema_overrides={"key": pl.Int64}
    )
    small = Keying("key").split(frame, 3)
    monkeypatch.setattr(keys, "_SMALL_FRAME", 0)
    large = Keying(pl.col("key")).split(frame, 3)
    assert [shard for shard, _ in small] == [shard for shard, _ in large]
    for (_, one), (_, other) in zip(small, large, strict=True):
        assert columns_of(one, "").equals(columns_of(other, ""))


COLUMNS = [
    pl.Series("k", [1, 2, None, -5]),
    pl.Series("k", ["x", "yy", None] * 300),
    pl.Series("k", [1.0, 2.5, None, 2.0**60]),
    pl.Series("k", [b"12", b"", None]),
    pl.Series("k", [True, False, None]),
    pl.Series("k", ["x", "y"], dtype=pl.Categorical),
    pl.Series("k", [2**63 + 5, 7], dtype=pl.UInt64),
    pl.Series("k", [dt.date(2020, 1, 1), None]),
    pl.Series("k", [dt.time(1, 2, 3), None]),
    *(
        pl.Series("k", [dt.datetime(2020, 1, 1), None]).cast(pl.Datetime(unit))
        for unit in ("ms", "us", "ns")
    ),
    pl.Series("k", [dt.timedelta(days=1), None]).cast(pl.Duration("ms")),
    pl.DataFrame({"a": [1, 2, None], "b": ["x", None, "z"]}).to_struct("k"),
    pl.DataFrame({"a": [1], "b": [{"c": 3, "d": "q"}]}).to_struct("k"),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.dtype))
@pytest.mark.parametrize("groups", [KEY_GROUPS, 30, None])
def test_the_shard_of_a_key_can_be_told_from_the_key_alone(
    column: pl.Series, groups: int | None
) -> None:
    keying = Keying("k", groups)
    frame = column.to_frame().with_row_index("row")
    for shards in (1, 2, 3, 7):
        told = keying.shards_of(keying.keys(frame), shards).tolist()
        for shard, part in keying.split(frame, shards):
            assert isinstance(part, pl.DataFrame)
            assert {told[row] for row in part["row"].to_list()} == {shard}


def test_keys_of_one_group_stay_together_over_any_number_of_shards() -> None:
    keying = Keying(lambda n: n, 12)
    group = keying.shards_of(range(500), 12)
    for shards in range(1, 13):
        together = set(
            zip(group.tolist(), keying.shards_of(range(500), shards).tolist(), strict=True)
        )
        assert len(together) == 12
