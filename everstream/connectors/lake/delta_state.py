"""A version of a Delta table: its data files, the progress of each shard, and what changed.

deltalake gives the sum of all versions. What a single version added and removed is in its entry of
the log, which is read here.
"""

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa

from everstream.connectors.lake.table import (
    MARK,
    Change,
    HistoryLost,
    LakeFile,
    Standing,
    TableMark,
    TableSnapshot,
)
from everstream.errors import UserError

COLUMNS_WITH_STATS = 32
LONGEST_TEXT = 32
_WIDER: dict[Any, pl.DataType] = {
    pl.UInt8: pl.Int16(),
    pl.UInt16: pl.Int32(),
    pl.UInt32: pl.Int64(),
    pl.UInt64: pl.Decimal(20, 0),
    pl.Categorical: pl.String(),
    pl.Enum: pl.String(),
}
_SAME = (
    *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64, pl.Boolean),
    *(pl.String, pl.Binary, pl.Date, pl.Decimal),
    pl.Null,  # in a column that no file has yet
)


def delta_kind(kind: pl.DataType) -> pl.DataType | None:
    """The type in which a Delta table keeps this one; None if there is none."""
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
    """A version of a Delta table."""

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
        """What the log has for one version."""
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
