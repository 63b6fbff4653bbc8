"""Rows of one side of a join, out of order."""

import polars as pl
from hypothesis import strategies as st


@st.composite
def side(draw: st.DrawFn, name: str) -> pl.DataFrame:
    now, made = 0, []
    for number, step in enumerate(draw(st.lists(st.integers(0, 80), min_size=1, max_size=40))):
        now += step
        made.append((draw(st.integers(0, 2)), now + draw(st.integers(-200, 0)), number))
    return pl.DataFrame(made, schema={"k": pl.Int64, "t": pl.Int64, name: pl.Int64}, orient="row")
