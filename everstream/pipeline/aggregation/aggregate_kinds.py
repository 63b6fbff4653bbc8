"""The kinds of aggregates: what each keeps of many records, and how two partial results merge.

Each works in three steps. A batch is grouped, and every group becomes one row of parts. Parts of
one group are merged whenever they meet, in any order. The result is computed from the merged
parts. So most of the work happens where the records are, and only rows of parts travel by key.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, TypeAlias

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.exact_sums import (
    ABOUT,
    can_wrap,
    checked,
    kind_of,
    means,
    running_kind,
    summed_kind,
)
from everstream.pipeline.batch import exact_series
from everstream.pipeline.types import Column
from everstream.state.freezing import dumps

How: TypeAlias = Literal["add", "min", "max"]
"""How two values of a part are merged."""


class Aggregate(ABC):
    """One aggregate; `name` is the name of its result column."""

    def describe(self) -> str:
        """The state as text: which kind, of which column."""
        column = getattr(self, "column", None)
        kind = type(self).__name__.lower()
        return kind if column is None else f"{kind}({column})"

    @property
    def columns_used(self) -> Sequence[Any]:
        """The columns that it takes: names and expressions."""
        column = getattr(self, "column", None)
        return [] if column is None else [column]

    @abstractmethod
    def parts(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        """The parts to compute for a group of records with the columns of this frame, by column."""

    @abstractmethod
    def part_names(self, name: str) -> list[str]:
        """The columns of its state."""

    @abstractmethod
    def merging(self, name: str, parts: pl.DataFrame) -> list[pl.Expr]:
        """How to merge a group of rows of parts with the columns of this frame."""

    @abstractmethod
    def result(self, name: str) -> pl.Expr:
        """The result, computed from merged parts."""

    @abstractmethod
    def nothing(self, name: str) -> list[pl.Expr]:
        """Its parts before any record, for rows saved before this aggregate was added."""

    def settle(self, grouped: pl.DataFrame, name: str, of_records: bool) -> pl.DataFrame:
        """Does in Python, on the grouped rows, what Polars cannot do for a group."""
        return grouped

    def finish(self, merged: pl.DataFrame, name: str) -> pl.DataFrame:
        """Like `settle`, for the results."""
        return merged


class InPython(Aggregate):
    """One part whose values are merged in Python."""

    @abstractmethod
    def merge_values(self, one: Any, other: Any) -> Any:
        """Merge two values of the part."""


class Simple(Aggregate):
    """Parts that are added or compared."""

    hows: Mapping[str, How]

    @abstractmethod
    def running(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        """The running parts: each record together with those before it, by column."""

    def part_names(self, name: str) -> list[str]:
        return [f"{name}.{part}" for part in self.hows]

    def nothing(self, name: str) -> list[pl.Expr]:
        return [pl.lit(0, pl.Int64) if how == "add" else pl.lit(None) for how in self.hows.values()]

    def merging(self, name: str, parts: pl.DataFrame) -> list[pl.Expr]:
        merge = {"add": pl.Expr.sum, "min": pl.Expr.min, "max": pl.Expr.max}
        return [merge[how](pl.col(f"{name}.{part}")) for part, how in self.hows.items()]


class Count(Simple):
    hows: Mapping[str, How] = {"n": "add"}

    def __init__(self, column: Column | None) -> None:
        self.column = column

    def parts(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        counted = pl.len() if self.column is None else _expr(self.column).count()
        return {f"{name}.n": counted.cast(pl.Int64)}

    def running(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        if self.column is None:
            return {f"{name}.n": pl.int_range(1, pl.len() + 1, dtype=pl.Int64)}
        return {f"{name}.n": _counted(_expr(self.column))}

    def result(self, name: str) -> pl.Expr:
        return pl.col(f"{name}.n").alias(name)


class Sum(Simple):
    """Keeps the type of what it adds up: whole numbers, Decimals or floats."""

    hows: Mapping[str, How] = {"sum": "add"}

    def __init__(self, column: Column) -> None:
        self.column = column

    def parts(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        column = _expr(self.column)
        kind = kind_of(column, frame)
        if not kind.is_numeric() and kind not in (pl.Boolean, pl.Null):
            called = "avg" if isinstance(self, Average) else "sum"
            raise UserError(
                f"es.{called}({self.column}) cannot add up values of type {kind} for "
                f"'{name}'. Cast the column to a number first."
            )
        return self._added(name, column, summed_kind(column, frame))

    def _added(self, name: str, column: pl.Expr, kind: pl.DataType) -> dict[str, pl.Expr]:
        added = {f"{name}.sum": column.cast(kind).sum()}
        if can_wrap(kind):
            added[f"{name}.{ABOUT}"] = column.cast(pl.Float64).sum()
        return added

    def merging(self, name: str, parts: pl.DataFrame) -> list[pl.Expr]:
        sums = pl.col(f"{name}.sum")
        added = self._added(name, sums, summed_kind(sums, parts))
        return [part.alias(column) for column, part in added.items()]

    def settle(self, grouped: pl.DataFrame, name: str, of_records: bool) -> pl.DataFrame:
        return checked(grouped, name)

    def running(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        Sum.parts(self, name, frame)  # raises if the column cannot be added up
        column = _expr(self.column)
        added = column.cast(running_kind(name, column, frame)).fill_null(0)
        return {f"{name}.sum": added.cum_sum()}

    def result(self, name: str) -> pl.Expr:
        return pl.col(f"{name}.sum").alias(name)


class Average(Sum):
    hows: Mapping[str, How] = {"sum": "add", "n": "add"}

    def parts(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        counted = _expr(self.column).count().cast(pl.Int64)
        return {**super().parts(name, frame), f"{name}.n": counted}

    def merging(self, name: str, parts: pl.DataFrame) -> list[pl.Expr]:
        return [*super().merging(name, parts), pl.col(f"{name}.n").sum()]

    def running(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        return {**super().running(name, frame), f"{name}.n": _counted(_expr(self.column))}

    def finish(self, merged: pl.DataFrame, name: str) -> pl.DataFrame:
        """Divides Decimals in Python: Polars would cut off digits that the sum does not have."""
        sums, counts = merged.get_column(f"{name}.sum"), merged.get_column(f"{name}.n")
        mean = means(sums, counts) if sums.dtype.is_decimal() else sums / counts
        return merged.with_columns(mean.alias(f"{name}.sum"))

    def result(self, name: str) -> pl.Expr:
        count, total = pl.col(f"{name}.n"), pl.col(f"{name}.sum")
        return pl.when(count > 0).then(total).alias(name)


class Extreme(Simple):
    """The smallest or greatest value; nulls do not count."""

    def __init__(self, column: Column, how: Literal["min", "max"]) -> None:
        self.column = column
        self.how: Literal["min", "max"] = how
        self.hows: Mapping[str, How] = {how: how, "n": "add"}

    def describe(self) -> str:
        return f"{self.how}({self.column})"

    def parts(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        column = _expr(self.column)
        extreme = column.min() if self.how == "min" else column.max()
        counted = column.count().cast(pl.Int64)
        return {f"{name}.{self.how}": extreme, f"{name}.n": counted}

    def running(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        column = _expr(self.column)
        extreme = column.cum_min() if self.how == "min" else column.cum_max()
        return {f"{name}.{self.how}": extreme.forward_fill(), f"{name}.n": _counted(column)}

    def result(self, name: str) -> pl.Expr:
        extreme = pl.col(f"{name}.{self.how}")
        return pl.when(pl.col(f"{name}.n") > 0).then(extreme).alias(name)


class TopK(InPython):
    """The k greatest, in descending order; ties are ordered by the other columns."""

    def __init__(self, column: str, k: int, others: Sequence[str]) -> None:
        if k < 1:
            raise UserError(f"es.top_k({column!r}, {k}): k must be at least 1.")
        self.column = column
        self.k = k
        self.others = list(others)

    @property
    def columns_used(self) -> Sequence[Any]:
        return [self.column, *self.others]

    def describe(self) -> str:
        return f"top_{self.k}({', '.join([self.column, *self.others])})"

    def part_names(self, name: str) -> list[str]:
        return [f"{name}.top"]

    def parts(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        rows = pl.struct(self.column, *self.others).filter(pl.col(self.column).is_not_null())
        return {f"{name}.top": self._top(rows)}

    def nothing(self, name: str) -> list[pl.Expr]:
        return [pl.lit([], pl.List(pl.Null))]

    def merging(self, name: str, parts: pl.DataFrame) -> list[pl.Expr]:
        column = pl.col(f"{name}.top")
        return [self._top(column.explode(empty_as_null=False)).alias(f"{name}.top")]

    def result(self, name: str) -> pl.Expr:
        top = pl.col(f"{name}.top").alias(name)
        return top if self.others else top.list.eval(pl.element().struct.field(self.column))

    def merge_values(self, one: Any, other: Any) -> Any:
        both = [*one, *other]
        return sorted(both, key=lambda row: tuple(map(_nulls_first, row.values())), reverse=True)[
            : self.k
        ]

    def _top(self, rows: pl.Expr) -> pl.Expr:
        return rows.sort(descending=True, nulls_last=True).head(self.k)


class Custom(InPython):
    """Python functions of the user: parts are pickled, and merged two at a time."""

    def __init__(
        self,
        init: Callable[[], Any],
        add: Callable[[Any, dict[str, Any]], Any],
        merge: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None,
    ) -> None:
        self.init, self.add, self.merge = init, add, merge
        self.read = result if result is not None else _same

    def part_names(self, name: str) -> list[str]:
        return [f"{name}.value"]

    def parts(self, name: str, frame: pl.DataFrame) -> dict[str, pl.Expr]:
        columns = [column for column in frame.columns if not column.startswith("__")]
        return {f"{name}.value": pl.struct(columns)}

    def nothing(self, name: str) -> list[pl.Expr]:
        return [pl.lit(dumps(self.init()), pl.Binary)]

    def merging(self, name: str, parts: pl.DataFrame) -> list[pl.Expr]:
        return [pl.col(f"{name}.value")]

    def result(self, name: str) -> pl.Expr:
        return pl.col(f"{name}.value").alias(name)

    def settle(self, grouped: pl.DataFrame, name: str, of_records: bool) -> pl.DataFrame:
        groups = grouped.get_column(f"{name}.value").to_list()
        if of_records:
            values = [dumps(reduce(self.add, group, self.init())) for group in groups]
        else:
            values = [
                dumps(reduce(self.merge, map(pickle.loads, parts))) if len(parts) > 1 else parts[0]
                for parts in groups
            ]
        return grouped.with_columns(pl.Series(f"{name}.value", values, dtype=pl.Binary))

    def finish(self, merged: pl.DataFrame, name: str) -> pl.DataFrame:
        parts = merged.get_column(f"{name}.value").to_list()
        values = [self.read(pickle.loads(part)) for part in parts]
        return merged.with_columns(exact_series(name, values, "es.custom").alias(f"{name}.value"))

    def merge_values(self, one: Any, other: Any) -> Any:
        return dumps(self.merge(pickle.loads(one), pickle.loads(other)))


_PARTS: Mapping[str, Sequence[str]] = {
    "count": ("n",),
    "sum": ("sum",),
    "average": ("sum", "n"),
    "min": ("min", "n"),
    "max": ("max", "n"),
    "top": ("top",),
    "custom": ("value",),
}


def parts_described(text: str) -> list[str]:
    """The state columns of an aggregate with this description, such as `total=sum(price)`."""
    name, _, what = text.partition("=")
    kind = "top" if what.startswith("top_") else what.partition("(")[0]
    return [f"{name}.{part}" for part in _PARTS[kind]]


_DESCRIBED: Mapping[str, Callable[[str], Aggregate]] = {
    "count": Count,
    "sum": Sum,
    "average": Average,
    "min": lambda column: Extreme(column, "min"),
    "max": lambda column: Extreme(column, "max"),
}


def described_aggregate(text: str) -> tuple[str, Aggregate | None]:
    """Name and aggregate of a description, to merge its parts; None for functions of the user."""
    name, _, what = text.partition("=")
    kind, _, columns = what.removesuffix(")").partition("(")
    if kind.startswith("top_"):
        column, *others = columns.split(", ")
        return name, TopK(column, int(kind.removeprefix("top_")), others)
    made = _DESCRIBED.get(kind)
    return name, None if made is None else made(columns)


def _expr(column: Column) -> pl.Expr:
    return pl.col(column) if isinstance(column, str) else column


def _counted(column: pl.Expr) -> pl.Expr:
    return column.is_not_null().cast(pl.Int64).cum_sum()


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, value)


def _same(value: Any) -> Any:
    return value
