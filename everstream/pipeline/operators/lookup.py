"""Lookups: values for the keys of a batch, asked for all at once, and kept for a while.

Answers that are kept are part of the checkpoint. So a key is asked about again only when its answer is
too old, also after a failure, and records of one key get one answer meanwhile. Answers are rows in groups
of the time at which they were given; a group is dropped as one.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.chunks import TIME, Chunks, kept_in, redistribute_chunks
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.event_time.window_aggregates import matched
from everstream.pipeline.exact import Unfit, in_kinds
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place
from everstream.pipeline.operator import Context, Operator

Ask = Callable[[pl.DataFrame], pl.DataFrame]
_ANSWERS = "answers"
_FOUND, _ROW = "__found", "__row"
_FOREVER_US = 3_600_000_000
"""The width of groups whose answers are not asked for again."""


class Lookup(Operator):
    """Adds the columns that a function of the keys gives."""

    def __init__(
        self,
        ask: Ask,
        names: Sequence[str],
        schema: Mapping[str, Any],
        inner: bool,
        refresh_us: int | None,
        most_answers: int | None,
        most_keys: int,
    ) -> None:
        self.ask = ask
        self.names = list(names)
        self.schema = pl.Schema(schema)
        self.inner = inner
        self.refresh_us = refresh_us
        self.most_answers = most_answers
        self.most_keys = most_keys
        self.keeps = refresh_us is not None or most_answers is not None
        """Whether answers are kept."""
        self.repeatable = not self.keeps

    def describe_state(self) -> dict[str, Any] | None:
        if not self.keeps:
            return None
        columns = [f"{name}: {kind}" for name, kind in self.schema.items()]
        return {"operator": "lookup", "columns": columns}

    def on_start(self, ctx: Context) -> None:
        self.answers = Chunks(ctx.state, _ANSWERS, owner=ctx.operator)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        kept = kept_in(parts).values()
        return {CONTEXT_STATE: redistribute_chunks(kept, _ANSWERS, partial(place.owns_rows))}

    def columns_used(self, side: str) -> Sequence[Any]:
        return self.names

    def columns_after(self, inputs: Mapping[str, pl.Schema]) -> Mapping[str, Any]:
        return {**inputs[""], **self.schema}

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        for name in self.names:
            if name not in frame.columns:
                raise UserError(
                    f"'{ctx.operator}' looks up column '{name}', but the records have: "
                    f"{', '.join(frame.columns)}."
                )
        taken = [name for name in self.schema if name in frame.columns]
        if taken:
            raise UserError(
                f"'{ctx.operator}' adds the column '{taken[0]}', which the records have already. Rename "
                "one of them before the lookup."
            )
        # A null is equal to nothing, so there is nothing to ask.
        keys = frame.select(self.names).unique(maintain_order=True).drop_nulls()
        now_us = int(ctx.now_s * 1e6) if self.keeps else 0
        known = self._kept(keys, now_us)
        asked = keys
        if known is not None and not known.is_empty():
            numbered = keys.with_row_index(_ROW)
            found = matched(numbered, known, self.names, self.names, "semi").get_column(_ROW)
            asked = keys.filter(~pl.Series(range(len(keys))).is_in(found.to_list()))
        given = self._asked(asked, ctx)
        if self.keeps and not given.is_empty():
            dated = given.with_columns(pl.lit(now_us, pl.Int64).alias(TIME))
            self.answers.add_by_time(dated, self._width_us)
            self._limit()
        answers = given if known is None else pl.concat([known, given])
        ctx.emit_batch(self._joined(frame, answers))
        if self.refresh_us is not None and self.answers:
            ctx.wake_at((self.answers.groups[0] + self._width_us + self.refresh_us) / 1e6)

    def on_wake(self, now_s: float, ctx: Context) -> None:
        self._forget(int(now_s * 1e6))

    @property
    def _width_us(self) -> int:
        return _FOREVER_US if self.refresh_us is None else max(self.refresh_us // 8, 100_000)

    def _forget(self, now_us: int) -> None:
        if self.refresh_us is None:
            return
        for group in self.answers.groups:
            if group + self._width_us + self.refresh_us <= now_us:
                self.answers.drop(group)

    def _limit(self) -> None:
        """Keep only the answers that were given last."""
        groups = self.answers.groups
        if self.most_answers is None or self.answers.rows <= self.most_answers:
            return
        rows = self.answers.read(groups).sort(TIME, maintain_order=True)
        rows = rows.unique(self.names, keep="last", maintain_order=True).tail(self.most_answers)
        for group in groups:
            self.answers.drop(group)
        self.answers.add_by_time(rows, self._width_us)

    def _kept(self, keys: pl.DataFrame, now_us: int) -> pl.DataFrame | None:
        """The answers to these keys that are not too old; of several to one key the latest."""
        if not self.keeps:
            return None
        self._forget(now_us)
        if not self.answers:
            return None
        rows = self.answers.read(self.answers.groups)
        if self.refresh_us is not None:
            rows = rows.filter(pl.col(TIME) + self.refresh_us > now_us)
        try:  # keys may come in another type that holds them
            rows = in_kinds(rows, pl.Schema({**rows.schema, **keys.schema}))
        except Unfit:
            return None
        rows = matched(rows, keys, self.names, self.names, "semi").sort(TIME, maintain_order=True)
        return rows.unique(self.names, keep="last", maintain_order=True).drop(TIME)

    def _asked(self, keys: pl.DataFrame, ctx: Context) -> pl.DataFrame:
        """One row for each of these keys: the answer, or nulls."""
        parts: list[pl.DataFrame] = []
        for start in range(0, len(keys), self.most_keys):
            some = keys.slice(start, self.most_keys)
            given = self._checked(self.ask(some), some, ctx)
            given = given.with_columns(pl.lit(True).alias(_FOUND))
            joined = matched(some, given, self.names, self.names, "left")
            parts.append(joined.with_columns(pl.col(_FOUND).fill_null(False)))
        if parts:
            return pl.concat(parts)
        return pl.DataFrame(schema={**keys.schema, **self.schema, _FOUND: pl.Boolean})

    def _checked(self, given: Any, keys: pl.DataFrame, ctx: Context) -> pl.DataFrame:
        if not isinstance(given, pl.DataFrame):
            raise UserError(
                f"'{ctx.operator}': the lookup returned {type(given).__name__}. Return a Polars "
                "DataFrame with the key columns and the looked up ones."
            )
        wanted = [*self.names, *self.schema]
        if {*given.columns} != {*wanted}:
            raise UserError(
                f"'{ctx.operator}': the lookup returned the columns {', '.join(given.columns)} instead "
                f"of {', '.join(wanted)}."
            )
        try:
            kinds = pl.Schema({**keys.schema, **self.schema})
            answers: pl.DataFrame = in_kinds(given.select(wanted), kinds)
        except Unfit as problem:
            raise UserError(
                f"'{ctx.operator}': what was looked up does not fit: {problem}. Correct schema=, or "
                "convert the values."
            ) from None
        if answers.select(self.names).is_duplicated().any():
            twice = answers.filter(answers.select(self.names).is_duplicated()).row(0, named=True)
            raise UserError(
                f"'{ctx.operator}': the lookup returned several rows for "
                f"{ {name: twice[name] for name in self.names} }. Return one row per key."
            )
        return answers

    def _joined(self, frame: pl.DataFrame, answers: pl.DataFrame) -> pl.DataFrame:
        if self.inner:
            answers = answers.filter(_FOUND)
        rows = frame.with_row_index(_ROW)
        how: Any = "inner" if self.inner else "left"
        joined = matched(rows, answers, self.names, self.names, how).sort(_ROW)
        return joined.drop(_ROW, _FOUND)


class LookupTable(ABC):
    """A table that can be asked for the rows of some keys."""

    @abstractmethod
    def rows(self, keys: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
        """The rows of these keys, with their key columns and these."""


def asking(
    table: Ask | LookupTable | str | os.PathLike[str],
    names: Sequence[str],
    schema: Mapping[str, Any] | None,
) -> tuple[Ask, Mapping[str, Any]]:
    """The function to ask, and the columns that it adds."""
    if isinstance(table, str | os.PathLike):
        files = ParquetLookup(os.path.abspath(os.fspath(table)))
        columns = files.schema(names) if schema is None else schema
        files.columns = list(columns)
        return files, columns
    if not isinstance(table, LookupTable) and not callable(table):
        raise UserError(
            "lookup takes a function, es.PostgresTable(...), es.SqliteTable(...) or the path of Parquet "
            f"files, not {table!r}."
        )
    if not schema:
        raise UserError(
            "lookup: the types of the columns that it adds are not known before the run. Give them: "
            "schema={'city': pl.String, ...}."
        )
    if isinstance(table, LookupTable):
        return partial(table.rows, columns=list(schema)), schema
    return table, schema


class ParquetLookup:
    """Answers from Parquet files, which are read for each question."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.columns: list[str] = []

    def schema(self, names: Sequence[str]) -> dict[str, Any]:
        """The columns besides the keys."""
        columns = pl.scan_parquet(self.path).collect_schema()
        missing = [name for name in names if name not in columns]
        if missing:
            raise UserError(
                f"lookup: '{self.path}' has no column '{missing[0]}'; it has: {', '.join(columns)}."
            )
        return {name: kind for name, kind in columns.items() if name not in names}

    def __call__(self, keys: pl.DataFrame) -> pl.DataFrame:
        rows = pl.scan_parquet(self.path).select(*keys.columns, *self.columns)
        found: pl.DataFrame = rows.join(keys.lazy(), on=keys.columns, how="semi").collect()
        return found
