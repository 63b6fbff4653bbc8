"""How values stand in a Delta table's log: partition values as text, statistics as JSON."""

import json
import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl

COLUMNS_WITH_STATS = 32
LONGEST_TEXT = 32
_WIDER: dict[Any, pl.DataType] = {
    pl.UInt8: pl.Int16(),
    pl.UInt16: pl.Int32(),
    pl.UInt32: pl.Int64(),
    pl.UInt64: pl.Decimal(20, 0),
    pl.Categorical: pl.String(),
    pl.Enum: pl.String(),
    pl.Null: pl.String(),
}
_SAME = (
    *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64, pl.Boolean),
    *(pl.String, pl.Binary, pl.Date, pl.Decimal),
)


def delta_kind(kind: pl.DataType) -> pl.DataType | None:
    """The type in which a Delta table keeps this one; None if there is nothing like it."""
    if isinstance(kind, pl.Datetime):
        return pl.Datetime("us", "UTC" if kind.time_zone else None)
    if isinstance(kind, pl.List | pl.Array):
        inner = delta_kind(kind.inner)  # type: ignore[arg-type]
        return None if inner is None else pl.List(inner)
    if isinstance(kind, pl.Struct):
        fields = {f.name: delta_kind(f.dtype) for f in kind.fields}  # type: ignore[arg-type]
        return None if None in fields.values() else pl.Struct(fields)  # type: ignore[arg-type]
    if kind.base_type() in _SAME:
        return kind
    return _WIDER.get(kind.base_type())


def partition_text(value: Any) -> str | None:
    """A partition value as the log has it; an empty text means none there."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return str(value)


def partition_column(name: str, text: str | None, kind: pl.DataType) -> pl.Expr:
    """A column with one value, from the text in the log."""
    if not text:
        return pl.lit(None, kind).alias(name)
    if kind == pl.Boolean:
        return pl.lit(text == "true").alias(name)
    if kind == pl.Date:
        return pl.lit(date.fromisoformat(text)).alias(name)
    if isinstance(kind, pl.Datetime):
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if kind.time_zone and moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return pl.lit(moment).cast(kind).alias(name)
    return pl.lit(text).cast(kind).alias(name)


def stats_of(frame: pl.DataFrame) -> str:
    """What lets a reader skip a file: how many rows, and the least and greatest of each column."""
    columns = frame.select(frame.columns[:COLUMNS_WITH_STATS])
    known = [name for name in columns.columns if _has_order(columns[name])]
    least, greatest = columns.select(known).min(), columns.select(known).max()
    nulls = columns.null_count().row(0, named=True) if columns.width else {}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for name in known:
        first, last = _bound(least[name][0], False), _bound(greatest[name][0], True)
        if first is not None and last is not None:
            low[name], high[name] = first, last
    flat = {n: c for n, c in nulls.items() if not columns.schema[n].is_nested()}
    return json.dumps(
        {"numRecords": frame.height, "minValues": low, "maxValues": high, "nullCount": flat}
    )


def _has_order(column: pl.Series) -> bool:
    if column.dtype.is_float():
        return not column.is_nan().any()
    return column.dtype.is_integer() or column.dtype in (pl.String, pl.Date, pl.Datetime)


def _bound(value: Any, upper: bool) -> Any:
    """In JSON; None if it cannot be said, or not without a lie."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else None
    if isinstance(value, datetime):
        # Statistics have milliseconds: round away from the values between.
        over = value.microsecond % 1000
        value -= timedelta(microseconds=over)
        if upper and over:
            value += timedelta(milliseconds=1)
        return (
            value.strftime("%Y-%m-%dT%H:%M:%S.")
            + f"{value.microsecond // 1000:03d}"
            + ("Z" if value.tzinfo else "")
        )
    return value.isoformat() if isinstance(value, date) else value
