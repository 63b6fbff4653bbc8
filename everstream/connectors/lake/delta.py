"""Delta tables for the lake sink and source: the log is read here, and written by deltalake.

A shard's mark is two application transactions of the log: its checkpoint and its generation.
deltalake refuses a version if another writer has changed its application transactions meanwhile.
The log's own files list what each version added and removed; deltalake gives only the sum of them.
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import polars as pl
import pyarrow as pa
from pyarrow import fs as arrow_fs
from pyarrow import parquet

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
    sync_path,
)
from everstream.errors import UserError
from everstream.extras import extra
from everstream.state.storage import folders

COLUMNS_WITH_STATS = 32
LONGEST_TEXT = 32


def partition_text(value: Any) -> str | None:
    """A partition value as the log has it; an empty text means None there."""
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
    """Statistics that let a reader skip a file: the number of rows, and the range of each column."""
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
    """As JSON; None if it cannot be expressed exactly."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else None
    if isinstance(value, datetime):
        # Statistics have milliseconds: round outwards, so that no value is outside.
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


LOG = "_delta_log"
MOST_SHARDS = 256
READABLE = frozenset({"timestampNtz", "appendOnly", "invariants", "checkConstraints"})
"""Features a table may use and still be readable here; others need more than Parquet."""

RULES = frozenset({"delta.invariants", "delta.generationExpression", "delta.identity.start"})


class DeltaState(TableSnapshot):
    def __init__(self, place: str, fs: Any, table: Any) -> None:
        self.place = place
        self.fs = fs
        self.table = table
        self.version = int(table.version())

    def schema(self) -> pl.Schema:
        arrow = pa.schema(self.table.schema().to_arrow())
        return pl.DataFrame(pl.from_arrow(arrow.empty_table())).schema

    def partition_by(self) -> list[str]:
        return list(self.table.metadata().partition_columns)

    def required(self) -> list[str]:
        return [field.name for field in self.table.schema().fields if not field.nullable]

    def refuse_writing(self) -> None:
        settings = self.table.metadata().configuration
        rules = [name for name in settings if name.startswith("delta.constraints.")]
        if settings.get("delta.columnMapping.mode", "none") != "none":
            rules.append("column mapping")
        for field in self.table.schema().fields:
            rules += [
                f"{name} of column '{field.name}'" for name in field.metadata if name in RULES
            ]
        if rules:
            raise UserError(
                f"{self.place} has constraints that this sink cannot enforce: {', '.join(rules)}. "
                "Write to a table without them."
            )

    def paths(self) -> set[str]:
        actions = pa.table(self.table.get_add_actions())
        return {unquote(path) for path in actions.column("path").to_pylist()}

    def files(self) -> list[LakeFile]:
        self._refuse_features()
        # The struct of partition values has their types; a file of the log has them as text.
        actions = pl.DataFrame(pl.from_arrow(pa.table(self.table.get_add_actions())))
        keys = self.partition_by()
        files = [
            LakeFile(
                unquote(row["path"]),
                row["size_bytes"],
                row["num_records"] or 0,
                {"partition": {k: partition_text(row["partition"][k]) for k in keys}, "stats": ""},
            )
            for row in actions.iter_rows(named=True)
        ]
        return sorted(files, key=lambda file: file.path)

    def _refuse_features(self) -> None:
        protocol = self.table.protocol()
        features = set(protocol.reader_features or ()) - READABLE
        mapped = self.table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mapped == "none":
            features -= {"columnMapping"}
        if features:
            raise UserError(
                f"{self.place} uses {', '.join(sorted(features))}, which this source cannot read. "
                "Read it with Spark: es.SparkDataFrame, or drop the feature from the table."
            )

    def standing(self, owner: str, shard: int) -> Standing:
        checkpoint, generation = (
            self.table.transaction_version(app) or 0 for app in apps_of(owner, shard)
        )
        return Standing(checkpoint, generation)

    def shards(self, owner: str) -> list[int]:
        none = Standing()
        return [shard for shard in range(MOST_SHARDS) if self.standing(owner, shard) != none]

    def history(self) -> Iterator[Change]:
        for version in range(self.version, -1, -1):
            yield self._change(version)

    def changes_after(self, version: int) -> Iterator[Change]:
        for later in range(version + 1, self.version + 1):
            yield self._change(later)

    def _change(self, version: int) -> Change:
        try:
            with self.fs.open_input_file(entry_of(version)) as file:
                lines = bytes(file.read()).splitlines()
        except OSError:
            raise HistoryLost(
                f"version {version} is no longer in its log, which was cleaned up."
            ) from None
        added: list[LakeFile] = []
        removed: list[str] = []
        mark: TableMark | None = None
        for line in lines:
            ((kind, what),) = json.loads(line).items()
            if kind == "commitInfo":
                mark = TableMark.parse(what.get(MARK))
            elif kind == "add" and what.get("dataChange", True):
                if what.get("deletionVector"):
                    removed.append(unquote(what["path"]))
                added.append(_added(what))
            elif kind == "remove" and what.get("dataChange", True):
                removed.append(unquote(what["path"]))
        return Change(version, tuple(added), tuple(removed), mark)


def entry_of(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _added(what: dict[str, Any]) -> LakeFile:
    rows = json.loads(what["stats"]).get("numRecords", 0) if what.get("stats") else 0
    details = {"partition": what.get("partitionValues") or {}, "stats": ""}
    return LakeFile(unquote(what["path"]), what["size"], rows, details)


def apps_of(owner: str, shard: int) -> tuple[str, str]:
    """The application transactions of a shard: its checkpoint, and its generation."""
    app = f"everstream/{owner}/{shard}"
    return app, f"{app}/generation"


NOTES = "_everstream"
"""A folder whose name starts with _ is not part of a table, and a vacuum ignores it."""
ROWS_PER_GROUP = 262_144
BYTES_PER_WRITE = 8 << 20


def deltalake() -> Any:
    with extra("delta"):
        import deltalake
    return deltalake


class DeltaTable(LakeTable):
    format = "Delta Lake"
    relative = True
    empty_partition_is_null = True
    removed_by = "a vacuum removed it before it was read. Keep files"

    def __init__(self, uri: str | os.PathLike[str], options: Mapping[str, str] | None) -> None:
        place = os.fspath(uri)
        self.is_local = "://" not in place or place.startswith("file://")
        self.uri = os.path.abspath(place.removeprefix("file://")) if self.is_local else place
        self._options = {name: str(value) for name, value in (options or {}).items()} or None
        self.secrets = list((self._options or {}).values())
        self._mine = threading.local()

    def __str__(self) -> str:
        return f"the Delta table '{self.uri}'"

    @cached_property
    def fs(self) -> Any:
        """Its files, through deltalake, so that one set of options is enough."""
        deltalake()
        from deltalake.fs import DeltaStorageHandler

        if self.is_local:
            os.makedirs(self.uri, exist_ok=True)
        return arrow_fs.PyFileSystem(DeltaStorageHandler(self.uri, self._options))

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n not in ("fs", "_mine")}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self._mine = threading.local()

    def load(self, version: Any = None) -> DeltaState | None:
        library = deltalake()
        if self.is_local and not os.path.isdir(f"{self.uri}/{LOG}"):
            return None
        try:
            table = self._newest() if version is None else self._opened()
            if isinstance(version, datetime):
                table.load_as_version(version)
            elif version is not None:
                if version > table.version():
                    raise UserError(
                        f"{self} has no version {version}: its last is {table.version()}."
                    )
                table.load_as_version(version)
        except library.exceptions.TableNotFoundError:
            return None
        except (library.exceptions.DeltaError, OSError) as error:
            if version is None:
                raise self.problem(error, "read") from None
            raise HistoryLost(
                f"{self} no longer has version {version}: its log was cleaned up."
            ) from None
        return DeltaState(str(self), self.fs, table)

    def _opened(self) -> Any:
        return deltalake().DeltaTable(self.uri, storage_options=self._options)

    def _newest(self) -> Any:
        """The table as it is now; what this thread has read of its log is not read again.

        Each thread has its own: a commit is based on what its own thread has read last.
        """
        table = getattr(self._mine, "table", None)
        if table is None or not self._still_there(table.version()):
            self._mine.table = table = self._opened()
        else:
            table.update_incremental()
        return table

    def _still_there(self, version: int) -> bool:
        """Whether this is still the same table: it may have been deleted and recreated."""
        return not self.is_local or os.path.exists(f"{self.uri}/{entry_of(version)}")

    def create(self, schema: pl.Schema, partition_by: Sequence[str]) -> None:
        library = deltalake()
        for name in partition_by:
            kind = schema[name]
            if not (kind.is_integer() or kind in (pl.String, pl.Boolean, pl.Date)):
                raise UserError(
                    f"partition_by= names '{name}' of type {kind}: partition by text, "
                    "whole numbers, booleans or dates."
                )
        arrow = as_arrow(schema.to_frame()).schema
        try:
            library.DeltaTable.create(
                self.uri,
                library.Schema.from_arrow(arrow),
                partition_by=list(partition_by) or None,
                storage_options=self._options,
            )
        except library.exceptions.DeltaError as error:
            if self.load() is None:
                raise self.problem(error, "create") from None
        self._sync_log(0)

    def add_columns(self, state: TableSnapshot, schema: pl.Schema) -> None:
        assert isinstance(state, DeltaState)
        library = deltalake()
        fields = library.Schema.from_arrow(as_arrow(schema.to_frame()).schema).fields
        try:
            state.table.alter.add_columns(fields)
        except library.exceptions.CommitFailedError:
            raise Conflict from None
        except library.exceptions.DeltaError as error:
            raise self.problem(error, "add columns to") from None

    def write(
        self,
        state: TableSnapshot,
        frame: pl.DataFrame,
        stem: str,
        note: Callable[[list[str]], None],
    ) -> list[LakeFile]:
        keys = state.partition_by()
        if keys:
            parts = frame.partition_by(keys, as_dict=True, include_key=False, maintain_order=True)
        else:
            parts = {(): frame}
        named: list[tuple[str, dict[str, str | None], pl.DataFrame]] = []
        for number, (values, rows) in enumerate(parts.items()):
            texts = {key: partition_text(value) for key, value in zip(keys, values, strict=True)}
            folder = "".join(f"{quote(k, safe='')}={_folder(v)}/" for k, v in texts.items())
            named.append((f"{folder}{stem}-{number:04d}.parquet", texts, rows))
        note([path for path, _, _ in named])
        return [self._write(path, texts, rows) for path, texts, rows in named]

    def _write(self, path: str, texts: dict[str, str | None], rows: pl.DataFrame) -> LakeFile:
        try:
            if self.is_local:
                folders.make_folders(Path(self.uri, path).parent)
            with self._writing(path) as file:
                parquet.write_table(
                    as_arrow(rows), file, compression="zstd", row_group_size=ROWS_PER_GROUP
                )
                size_bytes = file.tell()
        except OSError as error:
            raise self.problem(error, "write to") from None
        if self.is_local:
            sync_path(f"{self.uri}/{path}")
        details = {"partition": texts, "stats": stats_of(rows)}
        return LakeFile(path, size_bytes, rows.height, details)

    def _writing(self, path: str) -> Any:
        """A new file. Buffered, because the raw file takes bytes but not Arrow's buffers."""
        return pa.BufferedOutputStream(self.fs.open_output_stream(path), BYTES_PER_WRITE)

    def delete(self, path: str) -> None:
        if self.size_of(path) is not None:
            try:
                self.fs.delete_file(path)
            except OSError as error:
                raise self.problem(error, "clean up in") from None

    def size_of(self, path: str) -> int | None:
        try:
            (info,) = self.fs.get_file_info([path])
        except OSError as error:
            raise self.problem(error, "read") from None
        return info.size if info.type == arrow_fs.FileType.File else None

    def commit(
        self,
        state: TableSnapshot,
        added: Sequence[LakeFile],
        removed: Sequence[str],
        mark: TableMark,
        shards: Sequence[int] = (),
    ) -> None:
        assert isinstance(state, DeltaState)
        library = deltalake()
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(
                f.path, f.size_bytes, f.details["partition"], now_ms, True, f.details["stats"]
            )
            for f in added
        ]
        actions += [RemoveAction(path, True, now_ms) for path in removed]
        marked = shards if mark.shard is None else [mark.shard]
        transactions = [
            library.Transaction(app, number)
            for shard in marked
            for app, number in zip(
                apps_of(mark.owner, shard), (mark.checkpoint, mark.generation), strict=True
            )
        ]
        try:
            state.table.create_write_transaction(
                actions,
                "append",
                state.table.schema(),
                state.partition_by() or None,
                commit_properties=library.CommitProperties(
                    custom_metadata={MARK: mark.as_text()}, app_transactions=transactions
                ),
            )
        except library.exceptions.CommitFailedError:
            raise Conflict from None
        except (library.exceptions.DeltaError, OSError) as error:
            raise self.problem(error, "commit to") from None
        self._sync_log(state.version + 1)

    def _sync_log(self, version: int) -> None:
        """Make what was committed survive a power failure; object stores do that themselves."""
        if not self.is_local:
            return
        while os.path.exists(path := f"{self.uri}/{entry_of(version)}"):
            sync_path(path)
            version += 1

    def read(self, file: LakeFile, schema: pl.Schema) -> Iterator[pl.DataFrame]:
        values = file.details["partition"]
        constants = [
            partition_column(name, text, schema[name])
            for name, text in values.items()
            if name in schema
        ]
        inside = [name for name in schema if name not in values]
        try:
            path = f"{self.uri}/{file.path}"  # Arrow reads a local file fastest
            opened = pa.OSFile(path) if self.is_local else self.fs.open_input_file(file.path)
            with opened as source:
                whole = parquet.ParquetFile(source)
                there = [name for name in inside if name in whole.schema_arrow.names]
                for group in range(whole.num_row_groups):
                    table = whole.read_row_group(group, columns=there)
                    frame = pl.DataFrame(pl.from_arrow(table))
                    if not there:
                        frame = pl.DataFrame(height=whole.metadata.row_group(group).num_rows)
                    yield in_form(frame.with_columns(constants), schema)
        except (OSError, pa.ArrowException) as error:
            raise self.unreadable(file, error) from None

    def read_note(self, name: str) -> str | None:
        path = f"{NOTES}/{name}"
        if self.size_of(path) is None:
            return None
        with self.fs.open_input_file(path) as file:
            return bytes(file.read()).decode()

    def write_note(self, name: str, text: str | None) -> None:
        path = f"{NOTES}/{name}"
        if text is None:
            self.delete(path)
            return
        try:
            self.fs.create_dir(NOTES)
            with self._writing(path) as file:
                file.write(text.encode())
        except OSError as error:
            raise self.problem(error, "write to") from None


def _folder(text: str | None) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if text is None else quote(text, safe="")


class Delta(LakeConnector):
    """A Delta Lake table. Batches are DataFrames. Needs `pip install 'everstream[delta]'`.

    As a source: reads the table as it is now, or as it was at a `version` (a number or a time);
    `columns` names the ones to read (default: all). With `follow=True` it never ends: it also
    reads the rows that later versions add, version by version. A version that deletes or replaces
    rows ends the run; with `on_change="skip"` it is skipped. Compactions change no rows, and are
    always skipped.

    As a sink: exactly-once. Each checkpoint's rows appear in one version of the table per shard.
    The table is created with the columns of the first rows, or of `schema={'name': pl.Float64,
    ...}`, and partitioned by `partition_by`. Unknown columns are refused,
    unless `evolve="add_columns"` adds them to the table.

    `storage_options` are those of deltalake (`AWS_ENDPOINT_URL`, ...); checkpoints contain none.

    >>> rows = es.Pipeline("write").source(es.Range(2, column="n"))
    >>> _ = rows.sink(es.Delta("numbers-table")).run()
    >>> es.Pipeline("read").source(es.Delta("numbers-table")).collect().run().collected()
    [{'n': 0}, {'n': 1}]
    """

    max_shards = MOST_SHARDS

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        version: int | datetime | None = None,
        follow: bool = False,
        on_change: OnChange = "fail",
        columns: Sequence[str] | None = None,
        batch_rows: int = ROWS_PER_BATCH,
        partition_by: Sequence[str] = (),
        schema: Mapping[str, Any] | type | None = None,
        evolve: Evolve | bool = "refuse",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            DeltaTable(path, storage_options),
            version=version,
            follow=follow,
            on_change=on_change,
            columns=columns,
            batch_rows=batch_rows,
            partition_by=partition_by,
            schema=schema,
            evolve=evolve,
        )
