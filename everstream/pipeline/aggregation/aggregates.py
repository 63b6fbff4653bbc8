"""The aggregates a user writes: es.count(), es.sum("price") and so on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregate_kinds import (
    Aggregate,
    Average,
    Count,
    Custom,
    Extreme,
    Sum,
    TopK,
    described_aggregate,
    parts_described,
)
from everstream.pipeline.aggregation.exact_sums import too_large
from everstream.pipeline.types import Column


class Aggregates:
    """Several aggregates, each under the name of its result column."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        if not named:
            raise UserError("give at least one aggregate, for example count=es.count().")
        for name, aggregate in named.items():
            if not isinstance(aggregate, Aggregate):
                raise UserError(
                    f"{name}={aggregate!r} is not an aggregate: use es.count(), es.sum(...), "
                    "es.avg(...), es.min(...), es.max(...), es.top_k(...) or es.custom(...)."
                )
        self.named: dict[str, Aggregate] = dict(named)

    @property
    def part_names(self) -> list[str]:
        return [part for name, one in self.named.items() for part in one.part_names(name)]

    @property
    def known(self) -> bool:
        """Whether the types of the results follow from those of the columns."""
        return not any(isinstance(one, Custom) for one in self.named.values())

    def describe(self) -> list[str]:
        """Each as text, in the order of their state columns."""
        return [f"{name}={one.describe()}" for name, one in self.named.items()]

    def of_records(
        self, frame: pl.DataFrame, by: Sequence[pl.Expr | pl.Series], more: Sequence[pl.Expr] = ()
    ) -> pl.DataFrame:
        """One row of parts for each group of records, with the further expressions of the group."""
        columns = [
            part.alias(column)
            for name, one in self.named.items()
            for column, part in one.parts(name, frame).items()
        ]
        return self._grouped(frame, by, [*more, *columns], of_records=True)

    def merged(
        self, parts: pl.DataFrame, by: Sequence[str], more: Sequence[pl.Expr] = ()
    ) -> pl.DataFrame:
        """One row of parts for each group of such rows, with the group's further expressions."""
        merging = [expr for name, one in self.named.items() for expr in one.merging(name, parts)]
        return self._grouped(parts, by, [*more, *merging], of_records=False)

    def results(self, merged: pl.DataFrame, keep: Sequence[pl.Expr | str]) -> pl.DataFrame:
        """The columns to keep, and the results."""
        for name, one in self.named.items():
            merged = one.finish(merged, name)
        return merged.select(*keep, *(one.result(name) for name, one in self.named.items()))

    def fitted(self, parts: pl.DataFrame, before: Sequence[str]) -> pl.DataFrame:
        """Converts rows of parts of the aggregates described by `before` into rows of these.

        Aggregates that were removed are dropped; new ones start as if no record had come.
        """
        others = {part for text in before for part in parts_described(text)} | {*self.part_names}
        new = [
            part.alias(column)
            for name, one in self.named.items()
            for column, part in zip(one.part_names(name), one.nothing(name), strict=True)
            if column not in parts.columns
        ]
        keys = [column for column in parts.columns if column not in others]
        return parts.with_columns(*new).select(*keys, *self.part_names)

    def _grouped(
        self,
        frame: pl.DataFrame,
        by: Sequence[pl.Expr | pl.Series | str],
        columns: Sequence[pl.Expr],
        of_records: bool,
    ) -> pl.DataFrame:
        try:
            grouped = frame.group_by(by).agg(*columns)
        except pl.exceptions.ComputeError as error:
            # Where all rows are one group, Polars notices that a sum of Decimals is too large.
            if "overflow in decimal" not in str(error):
                raise
            sums = [name for name, one in self.named.items() if isinstance(one, Sum)]
            raise too_large("' or '".join(sums)) from None
        for name, one in self.named.items():
            grouped = one.settle(grouped, name, of_records)
        return grouped


def described_aggregates(listed: Sequence[str]) -> Aggregates:
    """The aggregates with these descriptions, to merge what was saved; without `es.custom`."""
    named = {name: one for name, one in map(described_aggregate, listed) if one is not None}
    aggregates = Aggregates.__new__(Aggregates)
    aggregates.named = named
    return aggregates


def count(column: Column | None = None) -> Aggregate:
    """Count records; with a column, count those in which it is not null.

    >>> bids = [{"item": 1, "price": 5}, {"item": 1, "price": 9}]
    >>> keyed = es.Pipeline("bids").source(es.FromList(bids)).key_by("item")
    >>> keyed.aggregate(n=es.count()).collect().run().collected()
    [{'item': 1, 'n': 2}]
    """
    return Count(column)


def sum(column: Column) -> Aggregate:
    """The sum of a column; nulls are ignored.

    >>> bids = [{"item": 1, "price": 5}, {"item": 1, "price": 9}]
    >>> keyed = es.Pipeline("bids").source(es.FromList(bids)).key_by("item")
    >>> keyed.aggregate(total=es.sum("price")).collect().run().collected()
    [{'item': 1, 'total': 14}]
    """
    return Sum(column)


def avg(column: Column) -> Aggregate:
    """The mean of a column; null if all its values are null.

    >>> bids = [{"item": 1, "price": 5}, {"item": 1, "price": 9}]
    >>> keyed = es.Pipeline("bids").source(es.FromList(bids)).key_by("item")
    >>> keyed.aggregate(mean=es.avg("price")).collect().run().collected()
    [{'item': 1, 'mean': 7.0}]
    """
    return Average(column)


def min(column: Column) -> Aggregate:
    """The smallest value of a column.

    >>> bids = [{"item": 1, "price": 5}, {"item": 1, "price": 9}]
    >>> keyed = es.Pipeline("bids").source(es.FromList(bids)).key_by("item")
    >>> keyed.aggregate(lowest=es.min("price")).collect().run().collected()
    [{'item': 1, 'lowest': 5}]
    """
    return Extreme(column, "min")


def max(column: Column) -> Aggregate:
    """The greatest value of a column.

    >>> bids = [{"item": 1, "price": 5}, {"item": 1, "price": 9}]
    >>> keyed = es.Pipeline("bids").source(es.FromList(bids)).key_by("item")
    >>> keyed.aggregate(highest=es.max("price")).collect().run().collected()
    [{'item': 1, 'highest': 9}]
    """
    return Extreme(column, "max")


def top_k(column: str, k: int, *others: str) -> Aggregate:
    """The k greatest values of a column as a list; with `others`, a list of rows of these columns.

    >>> bids = [{"item": 1, "price": 5}, {"item": 1, "price": 9}]
    >>> keyed = es.Pipeline("bids").source(es.FromList(bids)).key_by("item")
    >>> keyed.aggregate(best=es.top_k("price", 1)).collect().run().collected()
    [{'item': 1, 'best': [9]}]
    """
    return TopK(column, k, others)


def custom(
    init: Callable[[], Any],
    add: Callable[[Any, dict[str, Any]], Any],
    merge: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
) -> Aggregate:
    """An aggregate made of your own Python functions.

    Starts from `init()` and calls `value = add(value, record)` for some of the records.
    `merge(one, other)` combines the values of two sets of records. `result(value)` is emitted
    (default: the value itself). Values must pickle. The order of records and merges is undefined.

    >>> bids = [{"item": 1, "price": 5}, {"item": 1, "price": 9}]
    >>> keyed = es.Pipeline("bids").source(es.FromList(bids)).key_by("item")
    >>> prices = es.custom(set, lambda seen, bid: seen | {bid["price"]}, set.union, sorted)
    >>> keyed.aggregate(prices=prices).collect().run().collected()
    [{'item': 1, 'prices': [5, 9]}]
    """
    return Custom(init, add, merge, result)
