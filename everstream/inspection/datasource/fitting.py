"""Batches of a pipeline as rows of Spark: their columns, and how they fit the requested ones.

Nothing is changed silently: a value that does not fit its column's type is an error that names the
column, never a null or a rounded number.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql.types import StructType

from everstream.engine.spark.launcher import arrow_schema, spark_schema
from everstream.errors import UserError
from everstream.inspection.operator_state import shown
from everstream.pipeline.batch import Batch

ROWS_PER_BATCH = 16_384
_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32()}


def table_of(batch: Batch) -> pa.Table:
    """A batch as columns: those of a frame, the keys of dicts, `_1`, `_2`... of tuples, or `value`."""
    if isinstance(batch, pl.DataFrame):
        return batch.to_arrow(compat_level=pl.CompatLevel.oldest())
    if all(isinstance(record, dict) for record in batch):
        names = dict.fromkeys(name for record in batch for name in record)
        columns = {str(name): [record.get(name) for record in batch] for name in names}
    elif all(isinstance(record, tuple) for record in batch):
        width = max(map(len, batch), default=0)
        if any(len(record) != width for record in batch):
            raise UserError(
                "the tuples of this output are of different lengths; map them to dicts."
            )
        columns = {f"_{n + 1}": [record[n] for record in batch] for n in range(width)}
    else:
        columns = {"value": list(batch)}
    return pa.table({name: _array(name, values) for name, values in columns.items()})


def _array(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"the values of column '{name}' do not make a column for Spark: {error}. Map the records "
            "to dicts of plain values before the sink."
        ) from error


def schema_of(batch: Batch) -> StructType:
    """The columns of a batch, in types that Spark has."""
    schema = table_of(batch).schema
    return spark_schema(pa.schema([field.with_type(_known(field.type)) for field in schema]))


def _known(kind: pa.DataType) -> pa.DataType:
    """The type, or one that holds all its values and that Spark knows."""
    if pa.types.is_dictionary(kind):
        return _known(kind.value_type)
    if pa.types.is_unsigned_integer(kind):
        return _SIGNED.get(kind, pa.int64())
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_known(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_known(kind.value_type))
    return kind


def fitted(batch: Batch, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The requested columns in the requested types; a key that no dict of a batch has is null."""
    of_dicts = isinstance(batch, list) and isinstance(batch[0], dict)
    return fitted_table(table_of(batch), schema, of_dicts)


def fitted_table(
    table: pa.Table, schema: StructType, of_dicts: bool = False
) -> Iterator[pa.RecordBatch]:
    """The requested columns in the requested types; of dicts, a missing column is null."""
    wanted = arrow_schema(schema)
    columns = []
    for field in wanted:
        if of_dicts and field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        if field.name not in table.column_names:
            raise UserError(_no_column(field.name, table.column_names))
        try:
            columns.append(table.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise UserError(
                f"column '{field.name}' does not fit the requested type {field.type}: "
                f'{error}. Give the columns with .schema("name type, ...").'
            ) from error
    yield from pa.table(columns, schema=wanted).to_batches(max_chunksize=ROWS_PER_BATCH)


def rows(columns: Mapping[str, Sequence[Any]], schema: StructType) -> Iterator[pa.RecordBatch]:
    """The requested ones of these columns of Python values; a string column accepts any value."""
    arrays = []
    wanted = arrow_schema(schema)
    for field in wanted:
        if field.name not in columns:
            raise UserError(_no_column(field.name, list(columns)))
        values = columns[field.name]
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            values = [shown(value) for value in values]
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UserError(
                f"column '{field.name}' has values that are not {field.type}: {error}. "
                "Request a string, which holds them all."
            ) from error
    yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _no_column(name: str, there: Sequence[str]) -> str:
    return f"there is no column '{name}'; there are: {', '.join(there)}."
