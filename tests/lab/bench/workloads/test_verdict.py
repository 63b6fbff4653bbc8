"""The comparison of output with truth, against a plain count of rows."""

from collections import Counter

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from everstream_lab.bench.workloads.verdict import EXACT, Verdict, compare

ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"])), max_size=15)
SCHEMA = {"n": pl.Int64, "text": pl.String}


def frame(rows: list[tuple[int, str]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@given(ROWS, ROWS)
def test_a_verdict_counts_what_counters_count(
    found: list[tuple[int, str]], expected: list[tuple[int, str]]
) -> None:
    shown, wanted = Counter(found), Counter(expected)
    surplus = shown - wanted
    untrue = sum(count for row, count in surplus.items() if row not in wanted)
    verdict = Verdict(
        lost=(wanted - shown).total(), duplicated=surplus.total() - untrue, untrue=untrue
    )
    assert compare(frame(found), frame(expected)) == verdict
    assert verdict.exact == (shown == wanted)


def test_order_and_surplus_columns_do_not_matter_and_integer_types_are_alike() -> None:
    expected = frame([(1, "a"), (2, "b")])
    found = expected.reverse().with_columns(pl.col("n").cast(pl.UInt32), more=pl.lit(1))
    assert compare(found, expected) == EXACT
