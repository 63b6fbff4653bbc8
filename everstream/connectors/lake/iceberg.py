"""Iceberg tables for the lake sink and source, through pyiceberg and its catalogs.

A shard's mark is a property of the table, set in the same commit that adds the files, so that it
outlives the snapshots it came with. Each of our commits makes a snapshot, even one that adds
nothing: the catalog accepts a commit only if the snapshot it is based on is still the newest, and
that keeps two commits apart. pyiceberg would retry a commit without asking; it must not, because a
retry must read the mark again first.

pyiceberg describes a file with its own objects. Pending files in a store must be readable by a later
version of it, so files are kept as plain values (`described`, `restored`).
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar
from uuid import UUID

import polars as pl
import pyarrow as pa

from everstream.connectors.columns import Evolve, as_arrow
from everstream.connectors.lake.connector import ROWS_PER_BATCH, LakeConnector
from everstream.connectors.lake.source import OnChange
from everstream.connectors.lake.table import (
    MARK,
    Change,
    Conflict,
    HistoryLost,
    LakeFile,
    LakeTable,
    Standing,
    TableMark,
    TableSnapshot,
    in_form,
    insisting,
    sync_path,
    without_secrets,
)
from everstream.errors import ConnectorError, EverstreamError, UserError
from everstream.extras import extra
from everstream.pipeline.exact import Kind, parts_of

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


NOTE = "everstream.note."
NO_RETRIES = {"commit.retry.num-retries": "0"}


def pyiceberg() -> Any:
    with extra("iceberg"):
        import pyiceberg.catalog
        import pyiceberg.exceptions
        import pyiceberg.io.pyarrow
        import pyiceberg.table
    return pyiceberg


class IcebergTable(LakeTable):
    format = "Iceberg"
    kept_as: ClassVar = {
        **LakeTable.kept_as,
        **dict.fromkeys((pl.Int8, pl.Int16, pl.UInt8), pl.Int32()),
    }
    removed_by = "its snapshot expired before it was read. Keep snapshots"

    def __init__(self, name: str, catalog: str | Mapping[str, str]) -> None:
        self.name = name
        self._catalog_name = catalog if isinstance(catalog, str) else catalog.get("name", "default")
        given = {} if isinstance(catalog, str) else dict(catalog)
        given.pop("name", None)
        self._properties = {key: str(value) for key, value in given.items()}
        self.secrets = [value for key, value in self._properties.items() if key != "type"]

    def __str__(self) -> str:
        return f"the Iceberg table '{self.name}'"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "catalog"}

    @cached_property
    def catalog(self) -> Any:
        library = pyiceberg()
        for tries_left in (1, 0):
            try:
                return library.catalog.load_catalog(self._catalog_name, **self._properties)
            except ValueError as error:
                raise UserError(
                    f"the catalog of {self} cannot be used: {without_secrets(error, self.secrets)}. Give its "
                    "properties, for example catalog={'type': 'sql', 'uri': 'sqlite:///c.db', "
                    "'warehouse': 'file:///lake'}."
                ) from None
            except Exception as error:  # of any library the catalog is made of
                # Two that start at once both create the catalog's tables, and one finds them there.
                if not tries_left:
                    raise self.problem(error, "open the catalog of") from None
        raise AssertionError

    def _loaded(self) -> Any:
        errors = pyiceberg().exceptions
        try:
            return self.catalog.load_table(self.name)
        except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
            return None
        except EverstreamError:
            raise
        except Exception as error:  # of any library the catalog is made of
            raise self._explained(error, "read") from None

    def load(self, version: Any = None) -> IcebergState | None:
        table = insisting(self, self._loaded)
        if table is None:
            return None
        table.metadata = table.metadata.model_copy(
            update={"properties": {**table.metadata.properties, **NO_RETRIES}}
        )
        if version is None or version == 0:
            return IcebergState(
                str(self), table, table.current_snapshot() if version is None else None
            )
        if isinstance(version, datetime):
            snapshot = table.snapshot_as_of_timestamp(int(version.timestamp() * 1000))
        else:
            snapshot = table.snapshot_by_id(version)
        if snapshot is None:
            raise HistoryLost(f"{self} has no snapshot {version}, or it has expired.")
        return IcebergState(str(self), table, snapshot)

    def _explained(self, error: Exception, doing: str) -> Exception:
        """A busy database, or one where another writer was faster, is a conflict like any other."""
        if type(error).__name__ == "IntegrityError" or "database is locked" in str(error):
            return Conflict()
        return self.problem(error, doing)

    def create(self, schema: pl.Schema, partition_by: Sequence[str]) -> None:
        library = pyiceberg()
        arrow = as_arrow(schema.to_frame()).schema
        already = (
            library.exceptions.TableAlreadyExistsError,
            library.exceptions.CommitFailedException,
        )
        try:
            namespace = library.catalog.Catalog.namespace_from(self.name)
            self.catalog.create_namespace_if_not_exists(namespace)
            with (
                self.catalog.create_table_transaction(self.name, arrow) as making,
                making.update_spec() as spec,
            ):
                for name in partition_by:
                    spec.add_identity(name)
        except already:
            return
        except EverstreamError:
            raise
        except Exception as error:
            if self.load() is None:
                raise self._explained(error, "create") from None

    def add_columns(self, state: TableSnapshot, schema: pl.Schema) -> None:
        assert isinstance(state, IcebergState)
        with self._committing("add columns to"), state.table.update_schema() as update:
            update.union_by_name(as_arrow(schema.to_frame()).schema)

    @contextmanager
    def _committing(self, doing: str) -> Iterator[None]:
        """Turns what a refused commit raises into a Conflict."""
        errors = pyiceberg().exceptions
        try:
            yield
        except (EverstreamError, Conflict):
            raise
        except (errors.CommitFailedException, errors.ValidationException):
            raise Conflict from None
        except Exception as error:
            raise self._explained(error, doing) from None

    def lost(self, values: pl.Series) -> pl.Series | None:
        # pyiceberg writes and reads a list of structs that is None as an empty one.
        if not any(map(_has_structs, parts_of(values.dtype))):
            return None
        lacking = [_lacks_a_list(value, values.dtype) for value in values.to_list()]
        return pl.Series(lacking, dtype=pl.Boolean)

    def write(
        self,
        state: TableSnapshot,
        frame: pl.DataFrame,
        stem: str,
        note: Callable[[list[str]], None],
    ) -> list[LakeFile]:
        assert isinstance(state, IcebergState)
        written = pyiceberg().io.pyarrow._dataframe_to_data_files(
            state.table.metadata,
            as_arrow(frame),
            io=_Noting(state.table.io, note),
            write_uuid=stem,
            counter=itertools.count(0),
        )
        try:
            files = [described(file, state.table.spec().spec_id) for file in written]
        except OSError as error:
            raise self.problem(error, "write to") from None
        folders = len(state.table.spec().fields) + 2
        for file in files:
            _sync(file.path, folders)
        return files

    def delete(self, path: str) -> None:
        if self.size_of(path) is not None:
            self._io(path).delete(path)

    def size_of(self, path: str) -> int | None:
        file = self._io(path).new_input(path)
        try:
            return len(file) if file.exists() else None
        except OSError as error:
            raise self.problem(error, "read") from None

    def _io(self, path: str) -> Any:
        pyiceberg()
        from pyiceberg.io import load_file_io

        return load_file_io(self.catalog.properties, path)

    def commit(
        self,
        state: TableSnapshot,
        added: Sequence[LakeFile],
        removed: Sequence[str],
        mark: TableMark,
        shards: Sequence[int] = (),
    ) -> None:
        assert isinstance(state, IcebergState)
        table = state.table
        with self._committing("commit to"):
            transaction = table.transaction()
            if mark.shard is None:
                transaction.remove_properties(
                    *(standing_name(mark.owner, shard) for shard in shards)
                )
            else:
                reached = f"{mark.checkpoint} {mark.generation}"
                transaction.set_properties({standing_name(mark.owner, mark.shard): reached})
            update = transaction.update_snapshot(snapshot_properties={MARK: mark.as_text()})
            producer = update.overwrite() if removed else update.fast_append()
            for file in added:
                producer.append_data_file(restored(file))
            leaving = set(removed)
            for task in table.scan().plan_files() if removed else ():
                if task.file.file_path in leaving:
                    producer.delete_data_file(task.file)
            producer.commit()
            transaction.commit_transaction()
        self._sync_metadata(state)

    def _sync_metadata(self, before: IcebergState) -> None:
        """Make what was committed survive a power failure; object stores do that themselves."""
        table = before.table
        if not _is_local(table.metadata_location):
            return
        _sync(table.metadata_location)
        snapshot = table.current_snapshot()
        if snapshot is not None:
            _sync(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id == snapshot.snapshot_id:
                    _sync(manifest.manifest_path)

    def read(self, file: LakeFile, schema: pl.Schema) -> Iterator[pl.DataFrame]:
        library = pyiceberg()
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.table import FileScanTask

        state = self.load()
        if state is None:
            raise HistoryLost(f"{self} no longer exists.")
        known = {field.name: field for field in state.table.schema().fields}
        for old in state.table.schemas().values():
            known = {field.name: field for field in old.fields} | known
        wanted = type(state.table.schema())(*(known[name] for name in schema))
        scan = library.io.pyarrow.ArrowScan(
            state.table.metadata, state.table.io, wanted, AlwaysTrue()
        )
        try:
            for batch in scan.to_record_batches([FileScanTask(restored(file))]):
                yield in_form(pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch]))), schema)
        except OSError as error:
            raise self.unreadable(file, error) from None

    def read_note(self, name: str) -> str | None:
        state = self.load()
        return None if state is None else state.table.properties.get(NOTE + name)

    def write_note(self, name: str, text: str | None) -> None:
        insisting(self, lambda: self._write_note(name, text))

    def _write_note(self, name: str, text: str | None) -> None:
        state = self.load()
        if state is None:
            return
        with self._committing("write to"), state.table.transaction() as transaction:
            if text is None:
                transaction.remove_properties(NOTE + name)
            else:
                transaction.set_properties({NOTE + name: text})


class _Noting:
    """A FileIO that reports the name of each file before creating it."""

    def __init__(self, io: Any, note: Callable[[list[str]], None]) -> None:
        self._io = io
        self._note = note

    def new_output(self, location: str) -> Any:
        self._note([location])
        return self._io.new_output(location)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)


def _has_structs(kind: Kind) -> bool:
    return isinstance(kind, pl.List) and isinstance(kind.inner, pl.Struct)


def _lacks_a_list(value: Any, kind: Any) -> bool:
    """Whether it contains None where there should be a list of structs."""
    if value is None:
        return _has_structs(kind)
    if isinstance(kind, pl.List):
        return any(_lacks_a_list(one, kind.inner) for one in value)
    if isinstance(kind, pl.Struct):
        return any(_lacks_a_list(value[field.name], field.dtype) for field in kind.fields)
    return False


def _is_local(path: str) -> bool:
    return path.startswith(("file:", "/"))


def _sync(path: str, levels: int = 1) -> None:
    if _is_local(path):
        sync_path(os.path.abspath(path.removeprefix("file:").replace("//", "/")), levels)


class Iceberg(LakeConnector):
    """An Iceberg table in a catalog. Batches are DataFrames. Needs `pip install 'everstream[iceberg]'`.

    `table` is its name, `"namespace.table"`. `catalog` is either the properties with which
    pyiceberg opens the catalog, or the name of one that is configured on every machine
    (`~/.pyiceberg.yaml`). Its passwords are in no checkpoint.

    As a source: reads the table as it is now, or as it was in a `version` (the id of a snapshot, or
    a time); `columns` names the ones to read (default: all). With `follow=True` it never ends: it
    also reads the rows that later snapshots add, snapshot by snapshot. A snapshot that deletes or
    replaces rows ends the run; with `on_change="skip"` it is skipped. Compactions change no rows,
    and are always skipped.

    As a sink: exactly-once. Each checkpoint's rows appear in one snapshot of the table per shard.
    The table is created with the columns of the first rows, or of `schema={'name': pl.Float64,
    ...}`, and partitioned by the values of `partition_by`. Unknown columns are refused unless
    `evolve="add_columns"`.

    >>> catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "file:///tmp/lake"}
    >>> numbers = es.Iceberg("docs.numbers", catalog)
    >>> numbers
    Iceberg(the Iceberg table 'docs.numbers')
    """

    def __init__(
        self,
        table: str,
        catalog: str | Mapping[str, str] = "default",
        *,
        version: int | datetime | None = None,
        follow: bool = False,
        on_change: OnChange = "fail",
        columns: Sequence[str] | None = None,
        batch_rows: int = ROWS_PER_BATCH,
        partition_by: Sequence[str] = (),
        schema: Mapping[str, Any] | type | None = None,
        evolve: Evolve | bool = "refuse",
    ) -> None:
        super().__init__(
            IcebergTable(table, catalog),
            version=version,
            follow=follow,
            on_change=on_change,
            columns=columns,
            batch_rows=batch_rows,
            partition_by=partition_by,
            schema=schema,
            evolve=evolve,
        )
