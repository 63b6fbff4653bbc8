"""Every built-in aggregate, and the same in plain Polars; over columns k, t and v."""

from typing import Any

import polars as pl

import everstream as es

AGGREGATES: dict[str, Any] = {
    "n": es.count(),
    "known": es.count("v"),
    "total": es.sum("v"),
    "mean": es.avg("v"),
    "low": es.min("v"),
    "high": es.max("v"),
    "best": es.top_k("v", 2),
    "rows": es.top_k("v", 2, "t"),
    "odd": es.custom(int, lambda odd, row: odd + row["t"] % 2, lambda one, two: one + two),
}
IN_POLARS = {
    "n": pl.len().cast(pl.Int64),
    "known": pl.col("v").count(),
    "total": pl.col("v").sum(),
    "mean": pl.col("v").mean(),
    "low": pl.col("v").min(),
    "high": pl.col("v").max(),
    "best": pl.col("v").drop_nulls().sort(descending=True).head(2),
    "rows": pl.struct("v", "t").filter(pl.col("v").is_not_null()).sort(descending=True).head(2),
    "odd": (pl.col("t") % 2).sum(),
}
