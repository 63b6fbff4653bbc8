"""A data file of an Iceberg table as plain values, which can be kept as JSON, and back.

pyiceberg describes a file with objects of its own; what waits in a store must be readable by a
later version of it.
"""

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import polars as pl

from everstream.connectors.delta_values import delta_kind
from everstream.connectors.lake import LakeFile
from everstream.errors import ConnectorError

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")
_FROM_TEXT = {
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "time": time.fromisoformat,
    "Decimal": Decimal,
    "UUID": UUID,
    "bytes": bytes.fromhex,
}


def iceberg_kind(kind: pl.DataType) -> pl.DataType | None:
    """The type in which an Iceberg table keeps this one; None if there is nothing like it."""
    kept = delta_kind(kind)
    if kept is None:
        return None
    if isinstance(kept, pl.List):
        inner = iceberg_kind(kept.inner)  # type: ignore[arg-type]
        return None if inner is None else pl.List(inner)
    if isinstance(kept, pl.Struct):
        fields = {f.name: iceberg_kind(f.dtype) for f in kept.fields}  # type: ignore[arg-type]
        return pl.Struct(fields)  # type: ignore[arg-type]
    return pl.Int32() if kept in (pl.Int8, pl.Int16) else kept


def described(file: Any, spec_id: int) -> LakeFile:
    """What pyiceberg knows of a data file."""
    details: dict[str, Any] = {
        "spec": spec_id,
        "partition": [_plain(value) for value in file.partition._data],
        "splits": list(file.split_offsets or []),
    }
    for name in _COUNTS:
        details[name] = {str(k): v for k, v in (getattr(file, name) or {}).items()}
    for name in _BOUNDS:
        details[name] = {str(k): bytes(v).hex() for k, v in (getattr(file, name) or {}).items()}
    return LakeFile(file.file_path, file.file_size_in_bytes, file.record_count, details)


def restored(file: LakeFile) -> Any:
    """The same as an object of pyiceberg."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    details = file.details
    counts: dict[str, Any] = {
        name: {int(k): v for k, v in details[name].items()} for name in _COUNTS
    }
    bounds: dict[str, Any] = {
        name: {int(k): bytes.fromhex(v) for k, v in details[name].items()} for name in _BOUNDS
    }
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(_value(plain) for plain in details["partition"])),
        record_count=file.rows,
        file_size_in_bytes=file.size_bytes,
        split_offsets=details["splits"] or None,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **counts,
        **bounds,
    )
    made.spec_id = details["spec"]
    return made


def _plain(value: Any) -> Any:
    """A partition value in JSON; what JSON does not have, with the name of its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = type(value).__name__
    if name in ("date", "datetime", "time"):
        return [name, value.isoformat()]
    if name == "bytes":
        return [name, value.hex()]
    if name in _FROM_TEXT:
        return [name, str(value)]
    raise ConnectorError(
        f"a partition value of type {name} cannot be kept: partition the table by another column."
    )


def _value(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    name, text = plain
    return _FROM_TEXT[name](text)
