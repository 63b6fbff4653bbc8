"""Rows of one side of a join, out of order, and joins by plain sequential programs."""

from typing import Any

import polars as pl
from hypothesis import strategies as st

from everstream.pipeline.event_time.outer import How


@st.composite
def side(draw: st.DrawFn, name: str) -> pl.DataFrame:
    now, made = 0, []
    for number, step in enumerate(draw(st.lists(st.integers(0, 80), min_size=1, max_size=40))):
        now += step
        made.append((draw(st.integers(0, 2)), now + draw(st.integers(-200, 0)), number))
    return pl.DataFrame(made, schema={"k": pl.Int64, "t": pl.Int64, name: pl.Int64}, orient="row")


def near(
    left: pl.DataFrame, right: pl.DataFrame, between: tuple[int, int], how: How
) -> list[tuple[Any, ...]]:
    """An interval join: two nested loops."""
    pairs = [
        (one, other)
        for one in left.rows()
        for other in right.rows()
        if one[0] == other[0] and between[0] <= other[1] - one[1] <= between[1]
    ]
    ones, others = {one for one, _ in pairs}, {other for _, other in pairs}
    out = [(*one, *other[1:]) for one, other in pairs]
    if how in ("left", "full"):
        out += [(*one, None, None) for one in left.rows() if one not in ones]
    if how in ("right", "full"):
        out += [(o[0], None, None, *o[1:]) for o in right.rows() if o not in others]
    return out


def as_of(left: pl.DataFrame, right: pl.DataFrame, how: How, ends: int) -> list[Any]:
    """A join as of the time of each row; a version whose number `ends` divides ends its key."""
    out: list[Any] = []
    for k, t, number in left.rows():
        newest = None
        for version in right.rows():
            if version[0] == k and version[1] <= t and (newest is None or version[1] >= newest[1]):
                newest = version
        if newest is not None and newest[2] % ends:
            out.append((k, t, number, *newest[1:]))
        elif how == "left":
            out.append((k, t, number, None, None))
    return out
