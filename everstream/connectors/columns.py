"""Records as rows: what sinks with columns (CSV, Parquet, databases, lakes) have in common.

DataFrames pass unchanged. Dicts become rows by their keys, tuples and lists by position, with
the sink's column names or Spark's `_1`, `_2`, ... All shards of a sink agree on its columns
and their types (`settled`). Every later value is stored exactly in these types, or its record is
refused with an error that names the column and the value (`exact` decides which).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import polars as pl
import pyarrow as pa

from everstream.connectors.agreed_schema import Agreement, Settled
from everstream.errors import RefusedRecords, UserError
from everstream.pipeline import exact
from everstream.pipeline.batch import Batch, columns_by_name
from everstream.pipeline.exact import (
    Column,
    Kind,
    Misfits,
    SeriesColumn,
    column_of,
    is_open,
    nulls,
    parts_of,
    shown,
    wider,
)
from everstream.pipeline.operators.models import model_or_none
from everstream.pipeline.options import closest
from everstream.pipeline.sink import SinkShard, Writer


def as_frame(batch: Batch, operator: str, names: Sequence[str] | None = None) -> pl.DataFrame:
    """The batch as a DataFrame, all values unchanged; RefusedRecords names those that do not fit."""
    if isinstance(batch, pl.DataFrame):
        return batch
    rows = _Rows.of(batch, operator, names)
    columns: list[pl.Series] = []
    for column in rows.columns.values():
        values, misfits = column.fitted(column.kind)
        rows.refuse(values.name, misfits, "Give the column one type with a map before the sink.")
        columns.append(values)
    rows.raise_if_refused()
    return pl.DataFrame(columns)


class _Rows:
    """The records of a batch by their columns, and which of them are refused."""

    def __init__(self, batch: Batch, columns: Mapping[str, Column], operator: str) -> None:
        self.batch = batch
        self.columns = dict(columns)
        self._operator = operator
        self._refused: Misfits = {}

    @staticmethod
    def of(batch: Batch, operator: str, names: Sequence[str] | None) -> "_Rows":
        if isinstance(batch, pl.DataFrame):
            return _Rows(batch, {s.name: SeriesColumn(s) for s in batch.iter_columns()}, operator)
        first = batch[0]
        model = model_or_none(type(first))
        if model is not None:
            frame, misfits = model.rows(batch)
            rows = _Rows(batch, {s.name: SeriesColumn(s) for s in frame.iter_columns()}, operator)
            for row, reason in misfits.items():
                rows.refuse_row(
                    row, f"operator '{operator}': a record is not {model.name}: {reason}."
                )
            rows.raise_if_refused()
            return rows
        if isinstance(first, dict):
            wrong = _others(batch, dict, operator)
            if wrong:
                raise RefusedRecords(wrong)
            return _Rows(batch, {_name(c): c for c in columns_by_name(batch)}, operator)
        if isinstance(first, tuple | list):
            columns = list(names or [f"_{position + 1}" for position in range(len(first))])
            wrong = _others(batch, (tuple, list), operator) or {
                row: f"operator '{operator}': the record {shown(record)} has {len(record)} values, "
                f"not {len(columns)}, one for each of the columns {', '.join(columns)}."
                for row, record in enumerate(batch)
                if len(record) != len(columns)
            }
            if wrong:
                raise RefusedRecords(wrong)
            values = zip(*batch, strict=True)
            named = zip(columns, values, strict=True)
            return _Rows(batch, {n: column_of(n, v) for n, v in named}, operator)
        raise RefusedRecords(_others(batch, dict, operator))

    def refuse(self, column: str, misfits: Misfits, advice: str) -> None:
        for row, reason in misfits.items():
            about = f"operator '{self._operator}', column '{column}': {reason}. {advice}"
            self.refuse_row(row, about)

    def refuse_row(self, row: int, reason: str) -> None:
        self._refused.setdefault(row, f"{reason} Record: {shown(self._record(row))}.")

    def raise_if_refused(self) -> None:
        if self._refused:
            raise RefusedRecords(dict(sorted(self._refused.items())))

    def _record(self, row: int) -> Any:
        if isinstance(self.batch, pl.DataFrame):
            return self.batch.row(row, named=True)
        return self.batch[row]


def _name(column: Column) -> str:
    return column.values.name if isinstance(column, SeriesColumn) else column.name


def _others(batch: Sequence[Any], wanted: Any, operator: str) -> Misfits:
    return {
        row: f"operator '{operator}' writes rows, but got a record of type {type(record).__name__}: "
        f"{shown(record)}. Turn it into a dict first, for example .map(lambda r: {{'value': r}})."
        for row, record in enumerate(batch)
        if not isinstance(record, wanted)
    }


def all_but(*refused: Any) -> Callable[[Kind], Kind | None]:
    """Accepts every type unchanged, except types made of these or of Python objects."""

    def stored_as(kind: Kind) -> Kind | None:
        unfit = any(part.base_type() in (*refused, pl.Object) for part in parts_of(kind))
        return None if unfit else kind

    return stored_as


def never(_: Kind) -> bool:
    return False


def nothing_lost(_: pl.Series) -> pl.Series | None:
    return None


@dataclass(frozen=True)
class Format:
    """What the columns of an output format can hold."""

    name: str
    stored_as: Callable[[Kind], Kind | None] = field(default_factory=all_but)
    """The type in which it keeps values of a type; None if it cannot."""
    widens: bool = False
    """Whether written rows stay valid when a column gets a wider type."""
    keeps: Callable[[Kind, Kind], bool] = lambda before, after: True
    """Whether a column made for the first type also holds values of the second, wider type."""
    adds: bool = False
    """Whether columns may be added."""
    more_columns: str = ""
    """How to allow more columns."""
    needs_type: Callable[[Kind], bool] = is_open
    """Whether rows cannot be written while no more than this is known of a column's type."""
    lost: Callable[[pl.Series], pl.Series | None] = nothing_lost
    """True for values of a column that it cannot hold although it holds their type; None for none."""


Evolve: TypeAlias = Literal["refuse", "add_columns"]
"""What a sink does with columns that its output does not have. No choice changes the type of a column."""


def adds_columns(evolve: Any) -> bool:
    """The option `evolve=`, checked. True and False are "add_columns" and "refuse"."""
    if evolve not in ("refuse", "add_columns", True, False):
        raise UserError(f"evolve={evolve!r}: use 'refuse' or 'add_columns'.")
    return evolve in ("add_columns", True)


def evolving(format: Format, evolve: Any) -> Format:
    """The format with this choice."""
    adds = adds_columns(evolve)
    more = "" if adds else ", or give the sink evolve='add_columns', which adds them to the output"
    return replace(format, adds=adds, more_columns=more)


class Columns:
    """The columns of a sink's output: given, or those of the first batch of all shards."""

    def __init__(
        self,
        shard: SinkShard,
        given: pl.Schema | None,
        format: Format,
        existing: Callable[[], Mapping[str, Callable[[Kind], Kind | None]]] = dict,
    ) -> None:
        """existing: the columns of an existing table, each with the types it can hold."""
        self._operator = shard.operator
        self._given = given
        self._format = format
        self._existing = existing
        self._agreement = Agreement.of(shard)
        self._there: Mapping[str, Callable[[Kind], Kind | None]] = {}
        self._settled: Settled | None = None
        self._restored: Settled | None = None

    @property
    def adds(self) -> bool:
        return self._format.adds

    @property
    def widens(self) -> bool:
        return self._format.widens

    @property
    def schema(self) -> pl.Schema | None:
        """The agreed columns, as far as this writer knows."""
        return None if self._settled is None else self._settled.schema

    def saved(self) -> dict[str, Any] | None:
        known = self._settled or self._restored
        return None if known is None else known.as_json()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The columns at the checkpoint; needed if the store has no agreement."""
        self._restored = Settled.from_json(saved)

    def settle(self, batch: Batch) -> pl.DataFrame:
        """The batch, unchanged, in the agreed columns; RefusedRecords if that is impossible."""
        if isinstance(batch, pl.DataFrame) and batch.schema == self.schema and not self._open:
            return self._whole(_Rows(batch, {}, self._operator), batch)
        names = self._given or self.schema
        rows = _Rows.of(batch, self._operator, list(names) if names is not None else None)
        schema = self._agreed(rows)
        self._check_names(rows, schema)
        columns = [self._fitted(rows, name, kind) for name, kind in schema.items()]
        rows.raise_if_refused()
        return self._whole(rows, pl.DataFrame(columns))

    def require_types(self) -> None:
        """Raise a UserError if rows cannot be written yet because a column has no type."""
        if not self._open:
            return
        newest = self._agreement.newest()
        assert newest is not None
        self._settled = newest
        needed = [name for name, kind in newest.schema.items() if self._format.needs_type(kind)]
        there = self._existing() if needed else {}
        unknown = [name for name in needed if name not in there]
        if unknown:
            names = ", ".join(f"'{name}'" for name in unknown)
            raise UserError(
                f"operator '{self._operator}': the column {names} has had no value yet, only None "
                f"or empty lists, so its type is unknown, and {self._format.name} needs one. Give "
                f"the types: schema={{'{unknown[0]}': pl.Int64, ...}}; or leave the column out."
            )

    def check(self, schema: pl.Schema) -> None:
        """Raise a UserError if rows with these columns do not fit those given, or the format."""
        for name, kind in schema.items():
            where = f"operator '{self._operator}', column '{name}'"
            if self._given is not None and name not in self._given:
                raise UserError(
                    f"operator '{self._operator}': there is no column '{name}' in schema=, which has "
                    f"{', '.join(self._given)}. Add it, or leave it out with a select before the sink."
                    f"{closest(name, self._given)}"
                )
            given = None if self._given is None else self._given[name]
            if given is not None and not exact.holds(given, kind):
                raise UserError(
                    f"{where}: it is {kind}, which a column of type {given} does not hold. Cast it "
                    "before the sink, or correct schema=."
                )
            if self._format.stored_as(kind) is None:
                raise UserError(
                    f"{where}: {kind} has no {self._format.name} form. Turn it into text or numbers "
                    "before the sink, or use another format."
                )
        missing = [name for name in self._given or () if name not in schema]
        if missing and not self._format.adds:
            raise UserError(
                f"operator '{self._operator}': schema= has the column '{missing[0]}', and the rows have "
                f"only {', '.join(schema)}. Add it with with_columns, or remove it from schema=."
                f"{closest(missing[0], list(schema))}"
            )

    def settled(self, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Frames from `settle` as one, with the types that are known by now."""
        assert self._settled is not None
        return exact.together([pl.DataFrame(schema=self._settled.schema), *frames])

    @property
    def _open(self) -> bool:
        schema = self.schema
        named = self._given is not None  # also a type that holds only None
        return schema is not None and not named and any(map(is_open, schema.values()))

    def _agreed(self, rows: _Rows) -> pl.Schema:
        if self._settled is None:
            self._there = self._existing()
            self._settled = self._first(rows)
        while True:
            known = self._settled.schema
            wanted = pl.Schema({**known, **self._additions(rows, known)})
            if wanted == known:
                return known
            self._settled = self._agreement.propose(self._settled, wanted)

    def _first(self, rows: _Rows) -> Settled:
        agreed = self._agreement.newest()
        if self._given is not None:
            given = self._begun(
                {name: SeriesColumn(nulls(name, 0, k)) for name, k in self._given.items()}
            )
            if agreed is not None and agreed.schema != given:
                self._refuse_others(agreed.schema, given)
            return (
                agreed
                if agreed and agreed.schema == given
                else self._agreement.propose(agreed, given)
            )
        if agreed is not None:
            return agreed
        if self._restored is not None:
            return self._agreement.propose(None, self._restored.schema)
        return self._agreement.propose(None, self._begun(rows.columns))

    def _begun(self, columns: Mapping[str, Column]) -> pl.Schema:
        """The columns of an output that begins with these."""
        return pl.Schema(
            {
                name: self._stored_as(name, column.kind) or pl.Null()
                for name, column in columns.items()
                if not self._there or name in self._there or self._format.adds
            }
        )

    def _stored_as(self, name: str, kind: Kind) -> Kind | None:
        stored = self._format.stored_as(kind)
        return stored if stored is None or name not in self._there else self._there[name](stored)

    def _refuse_others(self, agreed: pl.Schema, given: pl.Schema) -> None:
        """Raise unless the given columns only add to the existing ones."""
        changed = [
            f"'{name}' is {agreed.get(name, 'missing')} there and {given.get(name, 'missing')} here"
            for name in dict.fromkeys((*agreed, *given))
            if not self._follows(agreed.get(name), given.get(name))
        ]
        if changed or [name for name in given if name in agreed] != list(agreed):
            raise UserError(
                f"operator '{self._operator}': schema= does not fit the existing output: "
                f"{', '.join(changed) or 'the columns have another order'}. Keep the columns and types "
                f"the output has{self._format.more_columns}, write to another place, or start over with --fresh, which deletes the "
                "output."
            )

    def _follows(self, before: Kind | None, after: Kind | None) -> bool:
        if before is None or after is None:
            return before is None and self._format.adds
        may = is_open(before) or (self._format.widens and self._format.keeps(before, after))
        return before == after or (may and wider(before, after) == after)

    def _additions(self, rows: _Rows, known: pl.Schema) -> dict[str, Kind]:
        if self._given is not None:
            return {}
        added: dict[str, Kind] = {}
        for name, column in rows.columns.items():
            if name not in known:
                kind = self._stored_as(name, column.kind) if self._format.adds else None
            elif is_open(known[name]) or (self._format.widens and column.fitted(known[name])[1]):
                both = wider(known[name], column.kind)
                kept = both is not None and self._format.keeps(known[name], both)
                kind = self._stored_as(name, both) if kept and both is not None else None
            else:
                continue
            if kind is not None and kind != known.get(name) and not self._loses_none(name, kind):
                added[name] = kind
        return added

    def _loses_none(self, name: str, kind: Kind) -> bool:
        """Whether the None of rows from before a column had this type would read as another value."""
        lost = self._format.lost(nulls(name, 1, kind))
        return lost is not None and bool(lost.any())

    def _check_names(self, rows: _Rows, schema: pl.Schema) -> None:
        surplus = [name for name in rows.columns if name not in schema]
        missing = [name for name in schema if name not in rows.columns]
        columns = isinstance(rows.batch, pl.DataFrame)
        if columns and (surplus or (missing and not self._format.adds)):
            reason = self._other_columns(missing, surplus, schema)
            for row in range(len(rows.batch)):
                rows.refuse_row(row, reason)
        for name in surplus if not columns else ():
            reason = self._other_columns([], [name], schema)
            for row, record in enumerate(rows.batch):
                if name in record:
                    rows.refuse_row(row, reason)
        for name in missing:
            # A dict may omit a key: that is None.
            rows.columns[name] = SeriesColumn(nulls(name, len(rows.batch), pl.Null()))

    def _other_columns(self, missing: list[str], surplus: list[str], schema: pl.Schema) -> str:
        differences = [("without", missing), ("with", surplus)]
        differing = ", ".join(f"{word} {', '.join(names)}" for word, names in differences if names)
        return (
            f"operator '{self._operator}': the columns changed: {differing} where the output has "
            f"{', '.join(schema)}. Select the same columns for every record before the sink"
            f"{self._format.more_columns if surplus else ''}."
        )

    def _fitted(self, rows: _Rows, name: str, kind: Kind) -> pl.Series:
        column = rows.columns[name]
        values, misfits = column.fitted(kind)
        if misfits:
            stored = self._format.stored_as(column.kind)
            advice = f"The column is {kind} in the output. Give it one type before the sink"
            if stored is None or kind == pl.Null:
                misfits = {
                    row: f"{column.shown(row)} has no {self._format.name} form" for row in misfits
                }
                advice = "Turn it into text or numbers before the sink, or use another format"
            elif self._given is None:
                advice += f", or name it: schema={{'{name}': pl.{_spelled(column.kind)}, ...}}"
            rows.refuse(name, misfits, f"{advice}.")
        return values

    def _whole(self, rows: _Rows, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame, if the format can hold every value in it."""
        for values in frame.iter_columns():
            lost = self._format.lost(values)
            if lost is not None and lost.any():
                misfits = {
                    row: f"{SeriesColumn(values).shown(row)} has no {self._format.name} form"
                    for row in lost.arg_true().to_list()
                }
                rows.refuse(values.name, misfits, "Leave it out or replace it before the sink.")
        rows.raise_if_refused()
        return frame


class ColumnsWriter(Writer):
    """A writer whose columns are part of its checkpoints."""

    _columns: Columns

    def saved(self) -> Any:
        return self._columns.saved()

    def restore(self, saved: Any) -> None:
        self._columns.restore(saved)


def _spelled(kind: Kind) -> str:
    """A type as it is written in a program."""
    return str(kind).replace("precision=", "").replace("scale=", "")


def in_kinds(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """The rows in a table's columns and types, or None; a UserError if a value would change."""
    try:
        return exact.in_kinds(frame, schema)
    except exact.Unfit as problem:
        raise UserError(
            f"{problem}, the type of the table's column, which has been changed. Restore the type it "
            "had, or use another table."
        ) from problem


Takes: TypeAlias = Callable[[Kind], Kind | None]
"""The type in which a table's column keeps values of a given type, or None."""


def fixed(kind: Kind) -> Takes:
    return lambda _: kind


def in_microseconds(kind: Kind) -> Kind:
    """The type in a database whose times are exact to the microsecond."""
    if isinstance(kind, pl.Datetime):
        return pl.Datetime("us", kind.time_zone)
    return pl.Duration("us") if isinstance(kind, pl.Duration) else kind


def as_arrow(frame: pl.DataFrame) -> pa.Table:
    """The rows in types that every reader of Parquet knows."""
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def is_made_of(kind: Kind, *parts: Any) -> bool:
    return any(part.base_type() in parts for part in parts_of(kind))


def nanoseconds(values: pl.Series) -> pl.Series | None:
    """Times of day that are more precise than a microsecond."""
    return values.cast(pl.Int64) % 1000 != 0 if values.dtype == pl.Time else None


def without_json(values: pl.Series) -> pl.Series | None:
    """Nested values that JSON cannot express: NaN, infinities, and half surrogate pairs."""
    if not values.dtype.is_nested() or not is_made_of(
        values.dtype, pl.Float32, pl.Float64, pl.String
    ):
        return None
    return pl.Series([not _has_json(value) for value in values.to_list()], dtype=pl.Boolean)


def _has_json(value: Any) -> bool:
    try:
        return "\\u0000" not in json.dumps(value, allow_nan=False, default=str)
    except ValueError:
        return False
