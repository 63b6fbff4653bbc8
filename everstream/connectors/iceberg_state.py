"""What a snapshot of an Iceberg table says: its rows' files, who has come how far, and what changed."""

from collections.abc import Iterator
from typing import Any

import polars as pl

from everstream.connectors.iceberg_files import described
from everstream.connectors.lake import (
    MARK,
    Change,
    HistoryLost,
    LakeFile,
    Mark,
    Standing,
    TableState,
)
from everstream.errors import UserError

STANDING = "everstream.mark."


class IcebergState(TableState):
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
        """Nothing but required columns is a rule of an Iceberg table."""

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
                f"{self.place} has rows that are deleted in its files, which this source cannot "
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
        """The snapshots from this one back to the first; HistoryLost where they break off."""
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
        """When a snapshot expires, the next one may be left without a parent, as if it were the first."""
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
        mark = Mark.parse(snapshot.summary.additional_properties.get(MARK))
        return Change(int(snapshot.snapshot_id), tuple(added), tuple(removed), mark)


def standing_name(owner: str, shard: int | str) -> str:
    return f"{STANDING}{owner}/{shard}"
