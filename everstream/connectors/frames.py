"""Records as rows: what sinks with columns (CSV, Parquet, databases) have in common.

DataFrames pass as they are. Dicts become rows by their keys, tuples and lists by position, with
the names the sink was given or Spark's `_1`, `_2`, ... A sink settles on the columns of its first
batch; later batches are brought into that form or refused with the column named.
"""

from collections.abc import Sequence

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch


def as_frame(batch: Batch, operator: str, names: Sequence[str] | None = None) -> pl.DataFrame:
    """The batch as a DataFrame, or a UserError that says how to make rows of the records."""
    if isinstance(batch, pl.DataFrame):
        return batch
    first = batch[0]
    try:
        if isinstance(first, dict):
            return pl.DataFrame(batch, infer_schema_length=None)
        if isinstance(first, tuple | list):
            columns = list(names or [f"_{position + 1}" for position in range(len(first))])
            if any(len(record) != len(columns) for record in batch):
                raise UserError(
                    f"operator '{operator}': not every record has {len(columns)} values, one for "
                    f"each of the columns {', '.join(columns)}."
                )
            return pl.DataFrame(batch, schema=columns, orient="row", infer_schema_length=None)
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise UserError(
            f"operator '{operator}': the records do not fit into columns: {error}. Give each "
            "column one type with a map before the sink."
        ) from error
    raise UserError(
        f"operator '{operator}' writes rows but got records of type {type(first).__name__}: "
        f"{repr(first)[:200]}. Turn them into dicts first, for example "
        ".map(lambda r: {'value': r})."
    )


class Columns:
    """The columns a sink's output has: given, or those of the first batch."""

    def __init__(self, operator: str, schema: pl.Schema | None) -> None:
        self._operator = operator
        self.schema = schema

    def settle(self, batch: Batch) -> pl.DataFrame:
        """The batch with exactly these columns, in this order."""
        names = list(self.schema) if self.schema is not None else None
        frame = as_frame(batch, self._operator, names)
        if self.schema is None:
            self.schema = self._first(frame)
        if frame.schema == self.schema:
            return frame
        missing = [name for name in self.schema if name not in frame.columns]
        surplus = [name for name in frame.columns if name not in self.schema]
        if surplus or (missing and isinstance(batch, pl.DataFrame)):
            raise UserError(
                f"operator '{self._operator}': the columns changed: "
                f"{_difference(missing, surplus)} where the output has "
                f"{', '.join(self.schema)}. Select the same columns for every record before the "
                "sink."
            )
        # A dict may leave a key out: None.
        frame = frame.with_columns(pl.lit(None).alias(name) for name in missing)
        try:
            return frame.select(pl.col(name).cast(kind) for name, kind in self.schema.items())
        except pl.exceptions.PolarsError as error:
            raise UserError(
                f"operator '{self._operator}': a column changed its type: {error}. Give the types "
                "to the sink, schema={'name': pl.Float64, ...}, or cast before it."
            ) from error

    def _first(self, frame: pl.DataFrame) -> pl.Schema:
        """A column of nothing but None has no type yet: it is taken for text."""
        for name, kind in frame.schema.items():
            if kind == pl.Object:
                raise UserError(
                    f"operator '{self._operator}': column '{name}' holds Python objects, such as "
                    f"{frame[name][0]!r}. Turn them into text or numbers with a map."
                )
        return pl.Schema(
            {name: pl.String() if kind == pl.Null else kind for name, kind in frame.schema.items()}
        )


def _difference(missing: list[str], surplus: list[str]) -> str:
    said = [("without", missing), ("with", surplus)]
    return ", ".join(f"{word} {', '.join(names)}" for word, names in said if names)
