"""Batches: what moves between operators.

A batch is either a Polars DataFrame (rows with columns, Arrow memory) or a plain list of Python
objects. Nothing here looks at single records unless a user's Python function asks for them.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import polars as pl

from everstream.errors import UserError

Batch: TypeAlias = pl.DataFrame | list[Any]


def records_of(batch: Batch) -> list[Any]:
    """The batch record by record: rows of a DataFrame become dicts."""
    return batch.rows(named=True) if isinstance(batch, pl.DataFrame) else batch


def columns_of(batch: Batch, wanted_by: str) -> pl.DataFrame:
    """The batch as a DataFrame, for operators that work on columns."""
    if isinstance(batch, pl.DataFrame):
        return batch
    if batch and not isinstance(batch[0], dict):
        raise UserError(
            f"'{wanted_by}' works on columns but got records of type {type(batch[0]).__name__}. "
            "Turn them into columns first, for example .map(lambda r: {'value': r})."
        )
    return pl.DataFrame(batch, infer_schema_length=None)


def where(batch: Batch, mask: pl.Series) -> Batch:
    """The records at which the mask is True."""
    if isinstance(batch, pl.DataFrame):
        return batch.filter(mask)
    return [record for record, keep in zip(batch, mask.to_list(), strict=True) if keep]


def joined(batches: Sequence[Batch]) -> list[Batch]:
    """Neighbouring batches of one kind and schema joined, so that fewer frames are sent."""
    groups: list[list[Batch]] = []
    for batch in batches:
        if groups and _alike(groups[-1][-1], batch):
            groups[-1].append(batch)
        else:
            groups.append([batch])
    return [_concatenated(group) for group in groups]


def _alike(one: Batch, other: Batch) -> bool:
    if isinstance(one, pl.DataFrame) and isinstance(other, pl.DataFrame):
        return one.schema == other.schema
    return isinstance(one, list) and isinstance(other, list)


def _concatenated(group: list[Any]) -> Batch:
    if isinstance(group[0], pl.DataFrame):
        frame: pl.DataFrame = pl.concat(group) if len(group) > 1 else group[0]
        return frame
    return [record for batch in group for record in batch]
