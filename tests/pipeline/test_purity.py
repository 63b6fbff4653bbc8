"""Which expressions count as plain is read off their structure, and in doubt none does."""

import sys
import warnings
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstream.pipeline.operators.builtin import Branch, Filter, Select, WithColumns
from everstream.pipeline.operators.purity import all_plain, is_plain

N, S, T = pl.col("n"), pl.col("s"), pl.col("t")

PLAIN: dict[str, Any] = {
    "a name": "sample",
    "a constant": 3,
    "columns named like functions": pl.col("sample") + pl.col("map_x") * pl.col("shuffle"),
    "a constant that says random": pl.lit("python apply rand map_elements"),
    "a new name that says sample": N.alias("sample_rolling_map"),
    "all columns": pl.all(),
    "columns by pattern and type": pl.col("^map_.*$") + pl.col(pl.Int64),
    "a moment that was said": pl.col("t") > datetime(2020, 1, 1),
    "a day and a duration": pl.lit(date(2020, 1, 1)) + pl.lit(timedelta(days=1)),
    "arithmetic": (N + 1) * 2 - N / 3 + N // 4 + N % 5 - -N,
    "comparison": (N == 1) | (N != 2) & (N < 3) ^ (N >= 4) | N.eq_missing(5),
    "negation": ~(N > 1),
    "missing values": N.is_null() | N.is_not_null() | N.is_nan() | N.is_finite(),
    "filling": pl.coalesce(N.fill_null(0), N.fill_nan(1.5)),
    "membership": N.is_in([1, 2]) & N.is_between(1, 9),
    "a cast": N.cast(pl.Int32).cast(pl.String).cast(pl.Decimal(10, 2)),
    "a choice": pl.when(N > 1).then(pl.lit("sample")).otherwise(None),
    "numbers": N.abs().floor().ceil().round(2).clip(0, 9).sqrt().sign(),
    "horizontal": pl.max_horizontal("n", "m") + pl.min_horizontal("n", "m"),
    "a struct and its field": pl.struct("n", "s").struct.field("n"),
    "replacement": N.replace({1: 2}),
    "text": S.str.to_uppercase().str.slice(1, 3).str.strip_chars().str.replace("a", "b"),
    "looking into text": S.str.contains("x") & S.str.starts_with("y") | (S.str.len_chars() > 2),
    "parts of text": pl.concat_str("s", S.str.extract("(x)", 1), separator="-"),
    "parsing": S.str.to_integer() + S.str.to_datetime("%Y").dt.year(),
    "times": T.dt.truncate("1h").dt.timestamp() + T.dt.year() + T.dt.weekday(),
    "making times": pl.datetime(N, 1, 1) + pl.duration(seconds=N),
    "lists": S.str.split(",").list.get(0).str.len_bytes() + S.str.split(",").list.len(),
    "renaming": N.name.suffix("_x").name.keep(),
    "the length of the batch": N * pl.len(),
}

CHANGING: dict[str, Callable[[], Any]] = {
    "a Python function": lambda: lambda row: row,
    "an object": object,
    "sample": lambda: N.sample(n=2),
    "sample with a seed": lambda: N.sample(n=2, seed=1),
    "shuffle": lambda: N.shuffle(seed=1),
    "sample from a list": lambda: S.str.split(",").list.sample(n=1),
    "rank at random": lambda: N.rank("random"),
    "map_elements": lambda: N.map_elements(lambda x: x, return_dtype=pl.Int64),
    "map_batches": lambda: N.map_batches(lambda x: x),
    "map_groups": lambda: pl.map_groups(["n"], lambda x: x[0], return_dtype=pl.Int64),
    "fold": lambda: pl.fold(0, lambda a, b: a + b, exprs=["n", "m"]),
    "reduce": lambda: pl.reduce(lambda a, b: a + b, exprs=["n", "m"]),
    "rolling_map": lambda: N.rolling_map(lambda x: 1, 2),
    "naming by a function": lambda: N.name.map(lambda name: name),
    "a function that cannot be written": lambda: N.map_batches(_unwritable()),
    "an object as a constant": lambda: pl.lit(object(), allow_object=True),
    "a plug-in": lambda: pl.plugins.register_plugin_function(
        plugin_path=sys.executable, function_name="f", args=[N]
    ),
    "unordered distinct values": lambda: N.unique(),
    "a sort that keeps no order": lambda: N.sort(),
    "a hash": lambda: N.hash(),
    "a sum, in some order": lambda: N.sum(),
    "a sum across columns, in some order": lambda: pl.sum_horizontal("n", "m"),
    "a window": lambda: N.sum().over("s"),
    "a type that depends on the process": lambda: S.cast(pl.Categorical),
    "the type of another column": lambda: N.cast(pl.dtype_of("m")),
    "a last digit that depends on the machine": lambda: N.exp(),
    "a part of the rows": lambda: N.filter(N > 1),
    "an expression inside a list": lambda: S.str.split(",").list.eval(pl.element()),
}


def _unwritable() -> Callable[[Any], Any]:
    import threading

    lock = threading.Lock()

    def held(series: Any) -> Any:
        with lock:
            return series

    return held


def made(kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CHANGING[kind]()


@pytest.mark.parametrize("kind", PLAIN)
def test_what_depends_on_the_batch_only_is_plain(kind: str) -> None:
    assert is_plain(PLAIN[kind])


@pytest.mark.parametrize("kind", CHANGING)
def test_what_may_depend_on_more_is_not_plain(kind: str) -> None:
    assert not is_plain(made(kind))


def test_the_operators_of_columns_are_as_pure_as_their_expressions() -> None:
    random = N.shuffle()
    assert Filter(N > 1).pure and not Filter(random > 1).pure
    assert Branch([N > 1, S == "map_"]).pure and not Branch([N > 1, random > 1]).pure
    assert WithColumns([N + 1], {"sample": S}).pure and not WithColumns([N], {"s": random}).pure
    assert Select(["n"], {"m": N}).pure and not Select([random], {}).pure
    assert not Filter(lambda record: True).pure


COMBINE: list[Callable[[pl.Expr, pl.Expr], pl.Expr]] = [
    lambda a, b: a + b,
    lambda a, b: a == b,
    lambda a, b: pl.when(a.is_null()).then(b).otherwise(a),
    lambda a, b: pl.coalesce(a, b),
    lambda a, b: a.cast(pl.Float64).fill_null(b),
    lambda a, b: pl.struct(a, b.alias("b")),
    lambda a, b: pl.max_horizontal(a, b).alias("map_sample"),
]
plain = st.sampled_from([value for value in PLAIN.values() if isinstance(value, pl.Expr)])


def nested(leaves: st.SearchStrategy[pl.Expr]) -> st.SearchStrategy[pl.Expr]:
    return st.recursive(
        leaves,
        lambda inner: st.builds(
            lambda combine, a, b: combine(a, b), st.sampled_from(COMBINE), inner, inner
        ),
        max_leaves=12,
    )


@given(nested(plain))
def test_plain_expressions_are_plain_however_they_are_nested(expression: pl.Expr) -> None:
    assert is_plain(expression)


@given(
    st.sampled_from([kind for kind in CHANGING if isinstance(made(kind), pl.Expr)]),
    st.lists(st.tuples(st.sampled_from(COMBINE), nested(plain), st.booleans()), max_size=5),
)
def test_one_changing_part_makes_the_whole_not_plain_wherever_it_is(
    kind: str, around: list[tuple[Any, pl.Expr, bool]]
) -> None:
    expression = made(kind)
    for combine, other, left in around:
        expression = combine(expression, other) if left else combine(other, expression)
    assert not is_plain(expression)
    assert not all_plain([N, expression])


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), nested(st.sampled_from([N, N * 2])))
def test_a_plain_expression_gives_the_same_every_time(
    numbers: list[int], expression: pl.Expr
) -> None:
    frame = pl.DataFrame({"n": numbers})

    def outcome() -> Any:
        try:
            return frame.select(out=expression)
        except pl.exceptions.PolarsError as error:
            return str(error)

    first, again = outcome(), outcome()
    assert first.equals(again) if isinstance(first, pl.DataFrame) else first == again


def test_an_expression_too_deep_to_be_read_is_not_plain() -> None:
    expression = N
    for _ in range(2_000):
        expression = ~expression
    limit = sys.getrecursionlimit()  # other libraries may have raised it
    sys.setrecursionlimit(1_000)
    try:
        assert not is_plain(expression)
    finally:
        sys.setrecursionlimit(limit)
