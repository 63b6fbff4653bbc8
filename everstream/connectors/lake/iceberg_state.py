"""A snapshot of an Iceberg table: its data files, the progress of each shard, and what changed.

pyiceberg describes a file with its own objects. Pending files in a store must be readable by a later
version of it, so files are kept as plain values (`described`, `restored`).
"""

from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import polars as pl

from everstream.connectors.lake.delta_state import delta_kind
from everstream.connectors.lake.table import (
    MARK,
    Change,
    HistoryLost,
    LakeFile,
    Standing,
    TableMark,
    TableSnapshot,
)
from everstream.errors import ConnectorError, UserError

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
    """The type in which an Iceberg table keeps this one; None if there is none."""
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
    """A partition value in JSON; other types come with the name of the type."""
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
        f"a partition value of type {name} cannot be saved: partition the table by another column."
    )


def _value(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    name, text = plain
    return _FROM_TEXT[name](text)


STANDING = "everstream.mark."


class IcebergState(TableSnapshot):
    """A snapshot of an Iceberg table; version 0 is the table before its first one."""

    def __init__(self, place: str, table: Any, snapshot: Any) -> None:
        self.place = place
        self.table = table
        self.snapshot = snapshot
        self.version = 0 if snapshot is None else int(snapshot.snapshot_id)

    def schema(self) -> pl.Schema:
        schema = self.table.schema()
        current = self.table.current_snapshot()
        if self.snapshot is not None and current is not None and self.snapshot != current:
            schema = self.table.schemas().get(self.snapshot.schema_id, schema)
        return pl.DataFrame(pl.from_arrow(schema.as_arrow().empty_table())).schema

    def partition_by(self) -> list[str]:
        schema = self.table.schema()
        return [schema.find_column_name(field.source_id) for field in self.table.spec().fields]

    def required(self) -> list[str]:
        return [field.name for field in self.table.schema().fields if field.required]

    def refuse_writing(self) -> None:
        """The only constraints of an Iceberg table are required columns."""

    def _tasks(self) -> list[Any]:
        if self.snapshot is None:
            return []
        return list(self.table.scan(snapshot_id=self.version).plan_files())

    def paths(self) -> set[str]:
        return {task.file.file_path for task in self._tasks()}

    def files(self) -> list[LakeFile]:
        tasks = self._tasks()
        if any(task.delete_files for task in tasks):
            raise UserError(
                f"{self.place} has files with deleted rows, which this source cannot "
                "read. Compact it first, or read it with Spark: es.SparkDataFrame."
            )
        files = [described(task.file, task.file.spec_id) for task in tasks]
        return sorted(files, key=lambda file: file.path)

    def standing(self, owner: str, shard: int) -> Standing:
        text = self.table.properties.get(standing_name(owner, shard))
        if text is None:
            return Standing()
        checkpoint, generation = text.split()
        return Standing(int(checkpoint), int(generation))

    def shards(self, owner: str) -> list[int]:
        prefix = standing_name(owner, "")
        names = [name for name in self.table.properties if name.startswith(prefix)]
        return sorted(int(name.removeprefix(prefix)) for name in names)

    def _ancestors(self) -> Iterator[Any]:
        """The snapshots from this one back to the first; HistoryLost where they end early."""
        snapshot = self.snapshot
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            if parent is None:
                self._require_first(snapshot)
                return
            snapshot = self.table.snapshot_by_id(parent)
        if self.snapshot is not None:
            raise HistoryLost(f"snapshot {parent} has expired.")

    def _require_first(self, snapshot: Any) -> None:
        """When a snapshot expires, the next one may lose its parent and look like the first."""
        manifests = snapshot.manifests(self.table.io)
        inherited = any(m.added_snapshot_id != snapshot.snapshot_id for m in manifests)
        if inherited or (snapshot.sequence_number or 0) > 1:
            raise HistoryLost(f"what came before snapshot {snapshot.snapshot_id} has expired.")

    def history(self) -> Iterator[Change]:
        for snapshot in self._ancestors():
            yield self._change(snapshot)

    def changes_after(self, version: int) -> Iterator[Change]:
        later: list[Any] = []
        for snapshot in self._ancestors():
            if snapshot.snapshot_id == version:
                break
            later.append(snapshot)
        else:
            if version > 0:
                raise HistoryLost(f"snapshot {version} is no longer a part of its history.")
        for snapshot in reversed(later):
            yield self._change(snapshot)

    def _change(self, snapshot: Any) -> Change:
        added: list[LakeFile] = []
        removed: list[str] = []
        operation = snapshot.summary.operation.value
        for manifest in [] if operation == "replace" else snapshot.manifests(self.table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=False):
                if entry.status.name == "DELETED" or manifest.content.name == "DELETES":
                    removed.append(entry.data_file.file_path)
                elif entry.status.name == "ADDED":
                    added.append(described(entry.data_file, manifest.partition_spec_id))
        mark = TableMark.parse(snapshot.summary.additional_properties.get(MARK))
        return Change(int(snapshot.snapshot_id), tuple(added), tuple(removed), mark)


def standing_name(owner: str, shard: int | str) -> str:
    return f"{STANDING}{owner}/{shard}"
