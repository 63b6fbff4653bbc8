"""Batches: what moves between operators.

A batch is either a Polars DataFrame (rows with columns, Arrow memory) or a plain list of Python
objects. Nothing here looks at single records unless a user's Python function needs them.
"""

from collections.abc import Container, Sequence
from itertools import chain, groupby
from typing import Any, TypeAlias

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.exact import Column, Unfit, column_of, shown, together
from everstream.pipeline.operators.models import model_or_none

Batch: TypeAlias = pl.DataFrame | list[Any]


def records_of(batch: Batch) -> list[Any]:
    """The batch record by record: rows of a DataFrame become dicts."""
    return batch.rows(named=True) if isinstance(batch, pl.DataFrame) else batch


def columns_of(batch: Batch, wanted_by: str) -> pl.DataFrame:
    """The batch as a DataFrame, for operators that work on columns."""
    if isinstance(batch, pl.DataFrame):
        return batch
    model = model_or_none(type(batch[0])) if batch else None
    if model is not None:
        frame, wrong = model.rows(batch)
        if wrong:
            raise model.problem(batch, wrong)
        return frame
    if batch and not isinstance(batch[0], dict):
        raise UserError(
            f"'{wanted_by}' works on columns, but got records of type {type(batch[0]).__name__}. "
            "Turn them into columns first, for example .map(lambda r: {'value': r})."
        )
    return pl.DataFrame([_kept(column, batch, wanted_by) for column in columns_by_name(batch)])


def columns_by_name(records: Sequence[dict[str, Any]]) -> list[Column]:
    """The values of dicts by key, unchanged; None where a record does not have the key."""
    names = dict.fromkeys(chain.from_iterable(records))
    return [column_of(str(name), [record.get(name) for record in records]) for name in names]


def exact_series(name: str, values: Sequence[Any], wanted_by: str) -> pl.Series:
    """Python values as a column, each as it is; a UserError if no one type holds them all."""
    column = column_of(name, values)
    series, misfits = column.fitted(column.kind)
    if not misfits:
        return series
    if series.null_count() == len(series):
        return pl.Series(name, values, dtype=pl.Object)
    raise UserError(
        f"'{wanted_by}': '{name}' has values of several types: {next(iter(misfits.values()))}. Give "
        "it one type with a map."
    )


def rows_together(frames: Sequence[pl.DataFrame], wanted_by: str) -> pl.DataFrame:
    """All rows, each value as it is; a UserError if a column has no one type for all of them."""
    try:
        return together(frames)
    except Unfit as problem:
        raise UserError(
            f"'{wanted_by}' keeps rows of earlier batches, and now {problem}. Give the column one type "
            "with a map or a cast before it."
        ) from None


def _kept(column: Column, records: Sequence[Any], wanted_by: str) -> pl.Series:
    values, misfits = column.fitted(column.kind)
    if not misfits:
        return values
    if values.null_count() == len(values):
        # The user's own objects: no type holds them, and none is needed to pass them along.
        return pl.Series(values.name, [r.get(values.name) for r in records], dtype=pl.Object)
    row, reason = next(iter(misfits.items()))
    raise UserError(
        f"'{wanted_by}' works on columns, and column '{values.name}' has values of several types: "
        f"{reason}. Record: {shown(records[row])}. Give the column one type with a map."
    )


def where(batch: Batch, mask: pl.Series) -> Batch:
    if isinstance(batch, pl.DataFrame):
        return batch.filter(mask)
    return [record for record, keep in zip(batch, mask.to_list(), strict=True) if keep]


def taken(batch: Batch, rows: Sequence[int]) -> list[Any]:
    if isinstance(batch, pl.DataFrame):
        return batch[rows].rows(named=True)
    return [batch[row] for row in rows]


def without(batch: Batch, rows: Container[int]) -> Batch:
    left = [row for row in range(len(batch)) if row not in rows]
    return batch[left] if isinstance(batch, pl.DataFrame) else [batch[row] for row in left]


def joined(batches: Sequence[Batch]) -> list[Batch]:
    """Joins neighbouring batches of one kind and schema, so that fewer frames are sent."""
    return [_concatenated(list(group)) for _, group in groupby(batches, _schema)]


def _schema(batch: Batch) -> pl.Schema | None:
    return batch.schema if isinstance(batch, pl.DataFrame) else None


def _concatenated(group: list[Any]) -> Batch:
    if isinstance(group[0], pl.DataFrame):
        frame: pl.DataFrame = pl.concat(group) if len(group) > 1 else group[0]
        return frame
    return [record for batch in group for record in batch]
