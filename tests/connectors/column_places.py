"""Column sinks of every kind for tests, and what independent readers find in their output.

`same` compares a value that was sent with what such a reader gives for it: equal in value and in
type, where a whole number may have become an equal float or Decimal, and a date its midnight.
"""

import json
import math
import sqlite3
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
from deltalake import DeltaTable

from everstream.connectors import Csv, Delta, Iceberg, Parquet, Postgres, Sqlite
from everstream.connectors.sql.database import TOKEN
from everstream.pipeline.sink import Sink, SinkShard
from tests.connectors import iceberg_reading
from tests.connectors.table_places import table_for

KINDS = ("csv", "parquet", "sqlite", "postgres", "delta", "iceberg")
IN_TEXT = ("csv",)
IN_JSON = ("sqlite", "postgres")
"""Lists and dicts are JSON there."""


class ColumnPlace:
    """An output of one kind in a folder of the test's own."""

    def __init__(self, kind: str, folder: Path, dsn: str = "") -> None:
        self.kind = kind
        self.folder = folder
        self.dsn = dsn
        self.store = f"{folder}/store"
        self.out = folder / "out"
        self.table = table_for(str(folder))

    def sink(self, **options: Any) -> Sink:
        match self.kind:
            case "csv":
                return Csv(f"{self.out}/", **options)
            case "parquet":
                return Parquet(f"{self.out}/", **options)
            case "sqlite":
                self.out.mkdir(exist_ok=True)
                return Sqlite(self.out / "out.db", self.table, **options)
            case "postgres":
                return Postgres(self.dsn, self.table, **options)
            case "delta":
                return Delta(self.out, **options)
        return Iceberg(iceberg_reading.NAME, iceberg_reading.catalog_in(self.out), **options)

    def sink_shard(self, generation: int = 1, shard: int = 0, shards: int = 2) -> SinkShard:
        return SinkShard("values", "out", shard, shards, generation, self.store)

    def rows(self) -> list[dict[str, Any]]:
        """The whole output, as somebody else reads it."""
        match self.kind:
            case "csv":
                return [row for part in sorted(self.out.glob("*.csv")) for row in _texts(part)]
            case "parquet":
                files = [str(part) for part in sorted(self.out.glob("*.parquet"))]
                if not files:
                    return []
                rows: list[dict[str, Any]] = pl.scan_parquet(files).collect().to_dicts()
                assert pyarrow.dataset.dataset(files).to_table().num_rows == len(rows)
                return rows
            case "sqlite":
                return self._sqlite_rows()
            case "postgres":
                return self._postgres_rows()
            case "delta":
                if not DeltaTable.is_deltatable(str(self.out)):
                    return []
                return list(pl.DataFrame(pl.from_arrow(_delta(self.out))).to_dicts())
        catalog = iceberg_reading.opened(self.out)
        if not catalog.table_exists(iceberg_reading.NAME):
            return []
        return catalog.load_table(iceberg_reading.NAME).scan().to_arrow().to_pylist()

    def _sqlite_rows(self) -> list[dict[str, Any]]:
        file = self.out / "out.db"
        if not file.exists():
            return []
        connection = sqlite3.connect(file)
        connection.row_factory = sqlite3.Row
        known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (self.table,))
        cursor = connection.execute(f'SELECT * FROM "{self.table}"') if known.fetchall() else []
        rows = [{n: v for n, v in dict(row).items() if n != TOKEN} for row in cursor]
        connection.close()
        return rows

    def _postgres_rows(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=psycopg.rows.dict_row) as connection:
            known = connection.execute("SELECT to_regclass(%s) AS t", (self.table,)).fetchone()
            if known is None or known["t"] is None:
                return []
            rows = connection.execute(f'SELECT * FROM "{self.table}"').fetchall()
        return [{n: v for n, v in row.items() if n != TOKEN} for row in rows]


def _delta(folder: Path) -> pa.Table:
    return DeltaTable(folder).to_pyarrow_table()


def _texts(part: Path) -> Iterator[dict[str, Any]]:
    """Every field as the text it is; an empty one that is not quoted is None."""
    names = pyarrow.csv.read_csv(part).column_names
    table = pyarrow.csv.read_csv(
        part,
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    yield from table.to_pylist()


def same(sent: Any, stored: Any, kind: str, among_decimals: bool = False) -> bool:
    """Whether what a reader of this kind of output finds is the value that was sent.

    among_decimals: its column has Decimals, too, which SQLite keeps as text.
    """
    if sent is None:
        return stored is None
    if kind in IN_TEXT:
        return isinstance(stored, str) and _same_text(sent, stored)
    if kind in IN_JSON and isinstance(sent, dict | list):
        loaded = json.loads(stored) if isinstance(stored, str) else stored
        # An array of PostgreSQL has values of its own types, and JSON has text for most of them.
        return _same_nested(sent, loaded, lambda s, f: _same_json(s, f) or _same_value(s, f))
    if kind == "sqlite" and among_decimals and isinstance(stored, str):
        return not isinstance(sent, float) and _same_text(sent, stored)
    if kind == "sqlite":
        return _same_sqlite(sent, stored)
    return _same_value(sent, stored)


def _same_value(sent: Any, stored: Any) -> bool:
    if isinstance(sent, dict | list):
        return _same_nested(sent, stored, _same_value)
    if sent is None or isinstance(sent, bool) or isinstance(stored, bool):
        return type(sent) is type(stored) and sent == stored
    if isinstance(sent, float):
        return isinstance(stored, float) and _same_float(sent, stored)
    if isinstance(sent, int | Decimal):
        decimal = isinstance(sent, Decimal)
        return isinstance(stored, Decimal if decimal else int | float | Decimal) and stored == sent
    if isinstance(sent, datetime):
        return isinstance(stored, datetime) and _instant(sent) == _instant(stored)
    if isinstance(sent, date):
        midnight = datetime.combine(sent, time())
        return stored == (midnight if isinstance(stored, datetime) else sent)
    return type(sent) is type(stored) and sent == stored


def _instant(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC)


def _same_float(sent: float, stored: float) -> bool:
    return sent == stored or (math.isnan(sent) and math.isnan(stored))


def _same_nested(sent: Any, stored: Any, equal: Any) -> bool:
    if isinstance(sent, list):
        whole = isinstance(stored, list) and len(stored) == len(sent)
        return whole and all(_same_nested(*both, equal) for both in zip(sent, stored, strict=True))
    if isinstance(sent, dict):
        # A field that only others have is None.
        whole = isinstance(stored, dict) and sent.keys() <= stored.keys()
        return whole and all(_same_nested(sent.get(n), v, equal) for n, v in stored.items())
    return bool(equal(sent, stored))


def _same_json(sent: Any, stored: Any) -> bool:
    if isinstance(sent, str) or sent is None or isinstance(sent, bool):
        return type(sent) is type(stored) and sent == stored
    if isinstance(sent, float) and type(stored) in (int, float):
        return sent == float(stored)  # jsonb writes all digits of a large one, without a point
    if isinstance(sent, int | float) and not isinstance(stored, str):
        return type(stored) in (int, float) and sent == stored
    if isinstance(sent, float):
        return False
    return isinstance(stored, str) and _same_text(sent, stored)  # also of a number among Decimals


def _same_sqlite(sent: Any, stored: Any) -> bool:
    """It has numbers, text and bytes; what else there is, is text, and a boolean 0 or 1."""
    if isinstance(sent, bool):
        return stored in (0, 1) and bool(stored) is sent
    if isinstance(sent, int | float):
        return isinstance(stored, int | float) and sent == stored
    if isinstance(sent, str | bytes):
        return type(sent) is type(stored) and sent == stored
    return isinstance(stored, str) and _same_text(sent, stored)


def _same_text(sent: Any, stored: str) -> bool:
    try:
        return _read_as(sent, stored)
    except (ValueError, ArithmeticError):  # it is no such value
        return False


def _read_as(sent: Any, stored: str) -> bool:
    match sent:
        case bool():
            return stored == ("true" if sent else "false")
        case int() | Decimal():
            # Among floats it is written as one.
            return Decimal(stored) == sent or (isinstance(sent, int) and float(stored) == sent)
        case float():
            return _same_float(sent, float(stored))
        case str():
            return stored == sent
        case datetime():
            return _instant(datetime.fromisoformat(_iso(stored))) == _instant(sent)
        case date():
            return datetime.fromisoformat(_iso(stored)) == datetime.combine(sent, time())
        case time():
            return time.fromisoformat(stored) == sent
        case timedelta():
            return stored == str(sent)
    raise AssertionError(f"{sent!r} has no text that could be compared")


def _iso(text: str) -> str:
    return text.replace("Z", "+00:00")
