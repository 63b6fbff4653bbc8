"""Running aggregates: per key, from the first record to now, without windows.

Every key has a slot; each part of an aggregate is one array over all slots, which a whole batch
updates at once. The arrays are cut into pages, and the key store holds the pages: a checkpoint has
those pages whose slots have changed, and nothing is done per record or per key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregate_kinds import Aggregate, Count, InPython, Simple
from everstream.pipeline.aggregates import Aggregates
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.chunks import kept_in
from everstream.pipeline.keys import Keying
from everstream.pipeline.local_parts import LocalParts, key_frame, records_frame
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.spreading import CONTEXT_STATE, Entries, Place
from everstream.pipeline.stream_base import Options, StreamBase
from everstream.pipeline.types import Row
from everstream.state.keystore import KeyStore

if TYPE_CHECKING:
    from everstream.pipeline.stream import Stream

PAGE = 4096
_MEET = {"add": np.add, "min": np.minimum, "max": np.maximum}
Array = np.ndarray[Any, Any]


class Slots:
    """Keys and their slots. Keys are kept page by page as the rows they came as."""

    def __init__(self, store: KeyStore[Any, Any]) -> None:
        self._store = store
        self._index: dict[Any, int] = {}
        pages = sorted(key[1] for key in store if key[0] == "keys")
        for page in pages:
            for key in _tuples(store["keys", page]):
                self._index[key] = len(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def of(self, keys: pl.DataFrame) -> Array:
        """The slot of each row; keys not seen before get the next ones."""
        index = self._index
        looked_up = _tuples(keys)
        slots = [*map(index.get, looked_up)]
        if None in slots:
            first, news = len(index), []
            for position, key in enumerate(looked_up):
                if slots[position] is None:
                    slot = index.get(key)
                    if slot is None:
                        slot = index[key] = len(index)
                        news.append(position)
                    slots[position] = slot
            self._keep(keys[news], first)
        return np.array(slots, dtype=np.int64)

    def _keep(self, keys: pl.DataFrame, first: int) -> None:
        while len(keys):
            page, used = divmod(first, PAGE)
            here = keys.head(PAGE - used)
            if used:
                here = pl.concat([self._store["keys", page], here], how="vertical_relaxed")
            self._store.put(("keys", page), here)
            keys = keys.slice(PAGE - used)
            first += PAGE - used


class Accumulator:
    """One number per slot, and how two of them become one."""

    def __init__(self, store: KeyStore[Any, Any], name: str, how: str) -> None:
        self._store = store
        self._name = name
        self.how = how
        pages = sorted(key[1] for key in store if key[0] == name)
        saved = [store.entries[name, page] for page in pages]
        self.values: Array = np.concatenate(saved) if saved else np.empty(0, np.int64)
        self._pages = len(pages)
        self._share(0)

    def begin(self, slots: int) -> None:
        """There are so many slots from before this number was kept: nothing has come for them."""
        if self._pages == 0 and slots:
            self._grow(-(-slots // PAGE) * PAGE, np.dtype(np.int64))
            self._pages = -(-slots // PAGE)
            self._share(0)
            self._store.touch((self._name, page) for page in range(self._pages))

    def update(self, slots: Array, column: pl.Series) -> None:
        """Take in one value for each of these slots, which may repeat."""
        values = self._ready(slots, column)
        _MEET[self.how].at(self.values, slots, values)
        self._touch(slots)

    def run(self, slots: Array, column: pl.Series, last: Array) -> Array:
        """Each row's value met with what its slot had; the rows at `last` become the slots'."""
        values = self._ready(slots, column)
        met: Array = _MEET[self.how](self.values[slots], values)
        self.values[slots[last]] = met[last]
        self._touch(slots)
        return met

    def _ready(self, slots: Array, column: pl.Series) -> Array:
        """The values as numbers of our kind; there is room for these slots."""
        physical = column.to_physical()
        if not physical.dtype.is_numeric() and physical.dtype not in (pl.Null, pl.Boolean):
            raise UserError(
                f"'{self._name}' is of type {column.dtype}: a running es.min or es.max takes "
                "numbers and times."
            )
        whole = not physical.dtype.is_float()
        numbers = physical.cast(pl.Int64 if whole else pl.Float64)
        if not whole or len(self.values) == 0 or self.values.dtype == np.int64:
            kind = np.dtype(np.int64 if whole else np.float64)
        else:
            kind = self.values.dtype
        values = numbers.to_numpy().astype(kind) if not numbers.null_count() else None
        if values is None:
            mask = numbers.is_null().to_numpy()
            values = np.where(mask, _neutral(self.how, kind), numbers.fill_null(0).to_numpy())
            values = values.astype(kind)
        pages = int(slots.max()) // PAGE + 1
        if pages * PAGE > len(self.values) or kind != self.values.dtype:
            self._grow(pages * PAGE, kind)
        if pages > self._pages:
            before, self._pages = self._pages, pages
            self._share(before)
        return values

    def _grow(self, size: int, kind: np.dtype[Any]) -> None:
        # Room for as much again, so that growing costs little per key in the long run.
        size = max(size, len(self.values) if size <= len(self.values) else 2 * len(self.values))
        room: Array = np.full(size, _neutral(self.how, kind), kind)
        used = self._pages * PAGE
        kept = self.values[:used]
        changed = used > 0 and kind != self.values.dtype
        neutral = kept == _neutral(self.how, self.values.dtype) if changed else None
        room[:used] = kept
        if neutral is not None:
            room[:used][neutral] = _neutral(self.how, kind)
        self.values = room
        self._share(0)
        if changed:
            self._store.touch((self._name, page) for page in range(self._pages))

    def _share(self, first: int) -> None:
        """The store's pages are views of the one array; untouched ones count as unchanged."""
        for page in range(first, self._pages):
            view = self.values[page * PAGE : (page + 1) * PAGE]
            self._store.entries[self._name, page] = view

    def _touch(self, slots: Array) -> None:
        self._store.touch((self._name, page) for page in np.unique(slots // PAGE).tolist())


class _Running(Operator):
    """State of aggregates per key."""

    why_in_memory = "running aggregates are arrays over all keys, which a batch changes at once"

    def __init__(self, aggregates: Aggregates) -> None:
        self.aggregates = aggregates

    def describe_state(self) -> dict[str, Any]:
        return {"operator": "aggregates", "aggregates": self.aggregates.describe()}

    def on_start(self, ctx: Context) -> None:
        kept = {"keys", *self.aggregates.part_names}
        for key in ctx.state:
            if key[0] not in kept:  # of an aggregate that was taken out
                ctx.state.delete(key)
        self._open(ctx.state)

    def _open(self, store: KeyStore[Any, Any]) -> None:
        self.slots = Slots(store)
        self.accumulators = {
            f"{name}.{part}": Accumulator(store, f"{name}.{part}", how)
            for name, one in self.aggregates.named.items()
            if isinstance(one, Simple)
            for part, how in one.hows.items()
        }
        for accumulator in self.accumulators.values():
            accumulator.begin(len(self.slots))

    def respread(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        store = KeyStore[Any, Any]()
        self._open(store)
        for entries in kept_in(parts).values():
            pages = sorted(key[1] for key in entries if key[0] == "keys")
            if not pages:
                continue
            keys = pl.concat([entries["keys", page] for page in pages], how="vertical_relaxed")
            theirs = np.flatnonzero(self.owned(keys, place))
            if len(theirs):
                self._take_over(entries, theirs, self.slots.of(keys[theirs]), store)
        return {CONTEXT_STATE: store.look()}

    def owned(self, keys: pl.DataFrame, place: Place) -> list[bool]:
        """The rows that come to this place."""
        return place.owns_rows(keys)

    def _take_over(
        self, entries: Entries, theirs: Array, ours: Array, store: KeyStore[Any, Any]
    ) -> None:
        """What an earlier shard had in some of its slots is in these slots of ours now."""
        for name, accumulator in self.accumulators.items():
            accumulator.update(ours, saved_values(entries, name, accumulator.how)[theirs])
        for name, one in self.aggregates.named.items():
            if isinstance(one, InPython):
                (column,) = one.part_names(name)
                for slot, other in zip(ours.tolist(), theirs.tolist(), strict=True):
                    if (column, other) in entries:
                        store.put((column, slot), entries[column, other])


class RunningChanges(_Running):
    """Takes rows of parts; emits a row for each key that they change."""

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        parts = columns_of(batch, ctx.operator)
        keys = parts.select(pl.exclude(self.aggregates.part_names))
        slots = self.slots.of(keys)
        # A key may come twice if several frames were joined on their way: its last row counts.
        rows = np.arange(len(slots))
        latest = np.empty(len(self.slots), np.int64)
        latest[slots] = rows
        last = np.flatnonzero(latest[slots] == rows)
        columns = []
        for name, accumulator in self.accumulators.items():
            accumulator.update(slots, parts.get_column(name))
            values = pl.Series(name, accumulator.values[slots[last]])
            columns.append(_in_kind(values, parts.get_column(name).dtype))
        changed = keys[last].with_columns(*columns)
        changed = self._with_python_parts(parts, changed, slots, last, ctx)
        ctx.emit_batch(self.aggregates.results(changed, keys.columns))

    def _with_python_parts(
        self, parts: pl.DataFrame, changed: pl.DataFrame, slots: Array, last: Array, ctx: Context
    ) -> pl.DataFrame:
        for name, one in self.aggregates.named.items():
            if not isinstance(one, InPython):
                continue
            (column,) = one.part_names(name)
            given = parts.get_column(column)
            for slot, value in zip(slots.tolist(), given.to_list(), strict=True):
                had = ctx.state.get((column, slot))
                merged = value if had is None else one.merge_values(had, value)
                ctx.state.put((column, slot), merged)
            kept = [ctx.state[column, slot] for slot in slots[last].tolist()]
            changed = changed.with_columns(pl.Series(column, kept, dtype=given.dtype))
        return changed


class RunningRecords(_Running):
    """Emits each record with the aggregates up to it."""

    def owned(self, keys: pl.DataFrame, place: Place) -> list[bool]:
        keying = place.keying[""]
        if not keying.on_columns and keys.columns[0] == "key_0":
            return place.owns(keys.rows())
        if keying.on_columns and keys.width == 1 and ".as_struct(" in str(keying.selector):
            raise UserError(
                f"operator '{place.operator}' is keyed by a struct of one column, and cannot get "
                "another number of shards: give key_by the column itself."
            )
        return place.owns(_tuples(keys))

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = records_frame(batch, ctx)
        twice = set(frame.columns) & set(self.aggregates.named)
        if twice:
            raise UserError(
                f"'{ctx.operator}': the records have a column '{twice.pop()}' already; give the "
                "aggregate another name."
            )
        keys = key_frame(ctx.keying, batch)
        row = pl.int_range(pl.len(), dtype=pl.Int64).alias("__row")
        groups = keys.lazy().with_columns(row).group_by(keys.columns).agg("__row").collect()
        rows = groups.get_column("__row")
        order, sizes = rows.explode().to_numpy(), rows.list.len().to_numpy()
        slots = np.empty(len(frame), np.int64)
        slots[order] = np.repeat(self.slots.of(groups.drop("__row")), sizes)
        ends = np.cumsum(sizes)
        last = order[ends - 1]
        # Which record of its key in this batch each one is: a count needs no more than that.
        nth = np.empty(len(frame), np.int64)
        nth[order] = np.arange(1, len(frame) + 1) - np.repeat(ends - sizes, sizes)
        slotted = frame.with_columns(pl.Series("__slot", slots), pl.Series("__nth", nth))
        running = slotted.select(
            (pl.col("__nth") if _counts_records(one) else expression.over("__slot")).alias(column)
            for name, one in self.aggregates.named.items()
            if isinstance(one, Simple)
            for column, expression in one.running(name, frame).items()
        )
        columns = [
            _in_kind(
                pl.Series(name, self.accumulators[name].run(slots, running.get_column(name), last)),
                running.get_column(name).dtype,
            )
            for name in running.columns
        ]
        ctx.emit_batch(self.aggregates.results(frame.with_columns(*columns), frame.columns))


def running_aggregates(
    stream: StreamBase[Any],
    keying: Keying,
    aggregates: Aggregates,
    emit: Literal["changes", "record"],
    options: Options,
) -> Stream[Row]:
    """The stages behind `stream.aggregate(...)`. By default called as they always were, so that
    their state is found."""
    from everstream.pipeline.windowed import two_stages

    if emit == "record":
        for name, one in aggregates.named.items():
            if not isinstance(one, Simple):
                raise UserError(
                    f'{name}: es.top_k and es.custom cannot run with emit="record"; use '
                    'emit="changes", or an operator of your own.'
                )
        return stream._then("aggregates", RunningRecords(aggregates), options)
    if emit != "changes":
        raise UserError(f'emit={emit!r} makes no sense: say "changes" or "record".')
    local = LocalParts(keying, aggregates)
    besides, operator = aggregates.part_names, RunningChanges(aggregates)
    return two_stages(stream, "aggregates", local, operator, besides, options)


def _counts_records(one: Aggregate) -> bool:
    return isinstance(one, Count) and one.column is None


def _in_kind(values: pl.Series, kind: pl.DataType) -> pl.Series:
    return values.cast(kind) if kind.is_temporal() else values


def _neutral(how: str, kind: np.dtype[Any]) -> Any:
    """What changes nothing when it meets another value."""
    if how == "add":
        return 0
    if kind.kind == "f":
        return np.inf if how == "min" else -np.inf
    limits = np.iinfo(kind)
    return limits.max if how == "min" else limits.min


def saved_values(entries: Entries, name: str, how: str) -> pl.Series:
    """What an accumulator of this name had saved, slot by slot; null where nothing had come."""
    pages = sorted(key[1] for key in entries if key[0] == name)
    values: Array = np.concatenate([entries[name, page] for page in pages])
    untouched = values == _neutral(how, values.dtype)
    return pl.Series(values).set(pl.Series(untouched), None)


def _tuples(keys: pl.DataFrame) -> list[Any]:
    """Keys as they can be looked up."""
    return keys.to_series().to_list() if keys.width == 1 else keys.rows()
