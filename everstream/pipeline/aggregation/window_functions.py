"""Functions of a record and the others of its key: `es.rank`, `es.lag`, `es.lead`, `es.cumulative`.

In a window they work on its rows in order of event time. Without one they work on all records of the key,
in the order in which they arrive (`running_functions.py`). They give a value for each row.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregate_kinds import Aggregate, Simple

Method: TypeAlias = Literal["ordinal", "min", "max", "dense", "average"]
_METHODS = ("ordinal", "min", "max", "dense", "average")


class WindowFunction(ABC):
    """A value for each row of a window."""

    @property
    def columns_used(self) -> Sequence[Any]:
        """The columns that it takes: names and expressions."""
        return [self.column] if hasattr(self, "column") else []

    @abstractmethod
    def describe(self) -> str:
        """As text: equal functions give the same text."""

    @abstractmethod
    def added(self, name: str, rows: pl.DataFrame, keys: list[pl.Expr]) -> pl.DataFrame:
        """The rows, which are in order, with the values as column `name`."""


class Ranked(WindowFunction):
    def __init__(self, column: str, descending: bool, method: Method) -> None:
        self.column, self.descending, self.method = column, descending, method

    def describe(self) -> str:
        order = "descending" if self.descending else "ascending"
        return f"rank({self.column}, {order}, {self.method})"

    def added(self, name: str, rows: pl.DataFrame, keys: list[pl.Expr]) -> pl.DataFrame:
        ranked = pl.col(self.column).rank(self.method, descending=self.descending)
        if self.method != "average":
            ranked = ranked.cast(pl.Int64)
        return rows.with_columns(_within(ranked, keys).alias(name))


class Shifted(WindowFunction):
    def __init__(self, column: str, by: int) -> None:
        self.column, self.by = column, by

    def describe(self) -> str:
        return f"{'lag' if self.by > 0 else 'lead'}({self.column}, {abs(self.by)})"

    def added(self, name: str, rows: pl.DataFrame, keys: list[pl.Expr]) -> pl.DataFrame:
        return rows.with_columns(_within(pl.col(self.column).shift(self.by), keys).alias(name))


class Cumulative(WindowFunction):
    def __init__(self, aggregate: Simple) -> None:
        self.aggregate = aggregate

    @property
    def columns_used(self) -> Sequence[Any]:
        return self.aggregate.columns_used

    def describe(self) -> str:
        return f"cumulative({self.aggregate.describe()})"

    def added(self, name: str, rows: pl.DataFrame, keys: list[pl.Expr]) -> pl.DataFrame:
        parts = self.aggregate.running(name, rows)
        running = [_within(part, keys).alias(column) for column, part in parts.items()]
        finished = self.aggregate.finish(rows.with_columns(running), name)
        return finished.with_columns(self.aggregate.result(name)).drop(*parts)


def _within(expression: pl.Expr, keys: list[pl.Expr]) -> pl.Expr:
    return expression.over(keys) if keys else expression


def rank(column: str, *, descending: bool = False, method: Method = "ordinal") -> WindowFunction:
    """The place of each record among those of its key and window: 1 for the least value.

    Without a window (`key_by(...).with_columns`), among those of its key so far. With
    descending=True, 1 for the greatest. Equal values get different places in order of time
    with method="ordinal" (default); "min", "max", "dense" and "average" are those of Polars.

    >>> rows = [{"at": 1, "price": 5}, {"at": 2, "price": 9}, {"at": 3, "price": 7}]
    >>> timed = es.Pipeline("ranks").source(es.FromList(rows)).event_time("at", unit="s")
    >>> windows = timed.window(es.Tumbling("10s"))
    >>> ranked = windows.with_columns(place=es.rank("price", descending=True))
    >>> ranked.collect().run().to_polars().select("price", "place").rows()
    [(5, 3), (9, 1), (7, 2)]
    """
    if method not in _METHODS:
        raise UserError(f"es.rank: method={method!r}: use one of {', '.join(_METHODS)}.")
    return Ranked(_column("rank", column), descending, method)


def lag(column: str, n: int = 1) -> WindowFunction:
    """The value of the record n before this one, of its key and window; null for the first n.

    >>> rows = [{"at": 1, "price": 5}, {"at": 2, "price": 9}]
    >>> timed = es.Pipeline("lags").source(es.FromList(rows)).event_time("at", unit="s")
    >>> windows = timed.window(es.Tumbling("10s"))
    >>> windows.with_columns(before=es.lag("price")).collect().run().to_polars()["before"].to_list()
    [None, 5]
    """
    return Shifted(_column("lag", column), _steps("lag", n))


def lead(column: str, n: int = 1) -> WindowFunction:
    """The value of the record n after this one, of its key and window; null for the last n.

    >>> rows = [{"at": 1, "price": 5}, {"at": 2, "price": 9}]
    >>> timed = es.Pipeline("leads").source(es.FromList(rows)).event_time("at", unit="s")
    >>> windows = timed.window(es.Tumbling("10s"))
    >>> windows.with_columns(after=es.lead("price")).collect().run().to_polars()["after"].to_list()
    [9, None]
    """
    return Shifted(_column("lead", column), -_steps("lead", n))


def cumulative(aggregate: Aggregate) -> WindowFunction:
    """An aggregate of each record and those before it, of its key and window.

    >>> rows = [{"at": 1, "price": 5}, {"at": 2, "price": 9}]
    >>> timed = es.Pipeline("sums").source(es.FromList(rows)).event_time("at", unit="s")
    >>> windows = timed.window(es.Tumbling("10s"))
    >>> sums = windows.with_columns(total=es.cumulative(es.sum("price"))).collect().run()
    >>> sums.to_polars()["total"].to_list()
    [5, 14]
    """
    if not isinstance(aggregate, Simple):
        raise UserError(
            f"es.cumulative({aggregate!r}): give es.count(), es.sum(...), es.avg(...), es.min(...) or "
            "es.max(...)."
        )
    return Cumulative(aggregate)


def _column(function: str, column: Any) -> str:
    if not isinstance(column, str):
        raise UserError(f"es.{function}({column!r}): give the name of a column.")
    return column


def _steps(function: str, n: Any) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise UserError(f"es.{function}: n={n!r}: give a whole number from 1 up.")
    return n
