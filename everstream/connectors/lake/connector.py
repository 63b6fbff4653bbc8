"""What lake tables of every format share, as a source and as a sink."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from everstream.connectors.agreed_schema import Agreement
from everstream.connectors.columns import Columns, Evolve, adds_columns
from everstream.connectors.files.parts import owner_of
from everstream.connectors.lake.sink import Form, LakeWriter, discard, notes_of, take_all_out
from everstream.connectors.lake.source import (
    NOT_YET,
    LakeOffset,
    LakeReader,
    OnChange,
    first_offset,
    redistribute_files,
)
from everstream.connectors.lake.table import LakeClaim, LakeTable, insisting
from everstream.connectors.options import at_least_one
from everstream.connectors.ownership import Owner
from everstream.connectors.two_way import TwoWay
from everstream.errors import UserError
from everstream.pipeline.operators.models import schema_of
from everstream.pipeline.sink import Delivery, SinkShard, Writer
from everstream.pipeline.source import Reader
from everstream.pipeline.types import Row

ROWS_PER_BATCH = 65_536


class LakeConnector(TwoWay[Row]):
    """A table of one format; exactly-once as a sink."""

    source_options = frozenset({"version", "follow", "on_change", "columns", "batch_rows"})
    sink_options = frozenset({"partition_by", "schema", "evolve"})
    delivery = Delivery.EXACTLY_ONCE
    max_shards: int | None = None

    def __init__(
        self,
        table: LakeTable,
        *,
        version: int | datetime | None,
        follow: bool,
        on_change: OnChange,
        columns: Sequence[str] | None,
        batch_rows: int,
        partition_by: Sequence[str],
        schema: Mapping[str, Any] | type | None,
        evolve: Evolve | bool,
    ) -> None:
        at_least_one(batch_rows=batch_rows)
        for name, value in {"partition_by": partition_by, "columns": columns}.items():
            if isinstance(value, str):
                raise UserError(f"{name}={value!r} must be a list of names: [{value!r}].")
        if on_change not in ("fail", "skip"):
            raise UserError(f"on_change={on_change!r}: use 'fail' or 'skip'.")
        self._table = table
        self._version = version
        self._follow = follow
        self._on_change = on_change
        self._columns = list(columns) if columns is not None else None
        self._batch_rows = batch_rows
        adds_columns(evolve)
        self._form = Form(tuple(partition_by), evolve)
        self._schema = schema_of(schema)
        self._settled: Any = None
        """The version that all shards begin with."""
        self._known: pl.Schema | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._table})"

    def _open_writer(self, shard: SinkShard) -> Writer:
        return LakeWriter(self._table, shard, self.columns(shard), self._form)

    def columns(self, shard: SinkShard) -> Columns:
        return self._form.columns(self._table, shard, self._schema)

    def _open_reader(self, shard: int, shards: int) -> Reader:
        if self._settled is None:
            self.check()
        state = None if self._settled is None else self._table.load(self._settled)
        if state is None and not self._follow:
            raise UserError(
                f"nothing to read: there is no {str(self._table).removeprefix('the ')}. Check its "
                "name, or give follow=True to wait for it."
            )
        return LakeReader(
            self._table,
            first_offset(state, shard, shards),
            place=(shard, shards),
            columns=self._columns,
            batch_rows=self._batch_rows,
            follow=self._follow,
            on_change=self._on_change,
        )

    def redistribute(self, offsets: Sequence[LakeOffset], shards: int) -> Sequence[LakeOffset]:
        return redistribute_files(offsets, shards, self._table, self._on_change)

    def stopping_point(self) -> int:
        state = self._table.load(self._version)
        return NOT_YET if state is None else state.version

    def unread(self, offsets: Sequence[LakeOffset], point: int) -> str | None:
        if point == NOT_YET:
            return None
        if any(offset.version != point for offset in offsets):
            return f"version {point}"
        return f"files of version {point}" if any(offset.left() for offset in offsets) else None

    def check(self) -> None:
        """Raise if the table cannot be reached, or has no such version or columns.

        A table that does not exist yet is fine: a sink creates it.
        """
        state = self._table.load(self._version)
        if state is None:
            return
        self._settled = state.version
        self._known = state.schema()
        missing = [name for name in self._columns or () if name not in self._known]
        if missing:
            raise UserError(
                f"{self._table} has no column {', '.join(missing)}; it has {', '.join(self._known)}."
            )

    def column_names(self) -> list[str] | None:
        if self._columns is not None:
            return self._columns
        return None if self._known is None else list(self._known)

    def column_types(self) -> Mapping[str, Any] | None:
        if self._known is None:
            return None
        return {name: self._known[name] for name in self._columns or self._known}

    def waits_for(self) -> str | None:
        if self._follow and self._settled is None:
            return f"there is no {str(self._table).removeprefix('the ')} yet: the run waits for it"
        return None

    def describe_offsets(self) -> dict[str, Any]:
        return {**super().describe_offsets(), "table": str(self._table)}

    def describe_output(self) -> dict[str, Any]:
        return {**super().describe_output(), "table": str(self._table)}

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        table, owner = self._table, owner_of(pipeline, operator)
        claim = LakeClaim(table, Owner.of(pipeline, operator, store))
        claim.check()
        state = table.load()
        if state is not None and state.has_output(owner) and not replace:
            raise UserError(
                f"{table} already holds rows of pipeline '{pipeline}', operator '{operator}', from "
                "an earlier run. Name another table, or use --fresh, which deletes them."
            )
        if state is not None:
            claim.take()
        notes = notes_of(store, operator)
        for name in notes.pendings(owner):
            discard(table, notes, name, state)
        insisting(table, lambda: take_all_out(table, owner))
        Agreement(pipeline, operator, store).forget()

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        state = self._table.load()
        if state is not None:
            LakeClaim(self._table, Owner.of(pipeline, operator, store)).keep()
        owner = owner_of(pipeline, operator)
        written = state is not None and state.has_output(owner)
        if not written and not notes_of(store, operator).pendings(owner):
            Agreement(pipeline, operator, store).forget()

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        state = self._table.load()
        if state is None or not state.has_output(owner_of(pipeline, operator)):
            return None
        return f"the rows of '{operator}' in {self._table}"
