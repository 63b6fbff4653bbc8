"""Running aggregates: per key, from the first record to now, without windows.

Every key has a slot. Each part of an aggregate is one array over all slots, which a whole batch
updates at once. The arrays are cut into pages, and the key store holds the pages: a checkpoint
contains the pages whose slots have changed, and no work is done per record or per key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregate_kinds import Aggregate, Count, InPython, Simple
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.chunks import kept_in
from everstream.pipeline.aggregation.exact_sums import EXACT, LIMIT, decimals, scale_of, too_large
from everstream.pipeline.aggregation.local_parts import key_frame, records_frame
from everstream.pipeline.batch import Batch, columns_of, rows_together
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place
from everstream.pipeline.operator import Context, Operator
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend
from everstream.state.canonical_key import row_keys

if TYPE_CHECKING:
    pass

PAGE = 4096
_MEET = {"add": np.add, "min": np.minimum, "max": np.maximum}
Array = np.ndarray[Any, Any]


class Slots:
    """Keys and their slots. Keys are kept page by page, as the rows they came as."""

    def __init__(self, store: StateBackend[Any, Any]) -> None:
        self._store = store
        self._index: dict[Any, int] = {}
        self._count = 0
        """Slots in use. In stores where each NaN had its own slot, more than there are keys."""
        pages = sorted(key[1] for key in store if key[0] == "keys")
        for page in pages:
            for key in row_keys(store["keys", page]):
                self._index.setdefault(key, self._count)
                self._count += 1

    def __len__(self) -> int:
        return self._count

    def of(self, keys: pl.DataFrame) -> Array:
        """The slot of each row; keys not seen before get the next ones."""
        index = self._index
        looked_up = row_keys(keys)
        slots = [*map(index.get, looked_up)]
        if None in slots:
            added: dict[Any, int] = {}
            positions: list[int] = []
            for position, key in enumerate(looked_up):
                if slots[position] is None:
                    slot = added.get(key)
                    if slot is None:
                        slot = added[key] = self._count + len(positions)
                        positions.append(position)
                    slots[position] = slot
            self._keep(keys[positions], self._count)
            index.update(added)
            self._count += len(positions)
        return np.array(slots, dtype=np.int64)

    def _keep(self, keys: pl.DataFrame, first: int) -> None:
        if first:
            # Keys that are not equal must not become equal, here or in another page.
            example = self._store["keys", (first - 1) // PAGE]
            _same_keys(example.head(1), keys)
        while len(keys):
            page, used = divmod(first, PAGE)
            here = keys.head(PAGE - used)
            if used:
                here = _same_keys(self._store["keys", page], here)
            self._store.put(("keys", page), here)
            keys = keys.slice(PAGE - used)
            first += PAGE - used


def _same_keys(before: pl.DataFrame, more: pl.DataFrame) -> pl.DataFrame:
    """Both as one frame, in types in which every key is still the one it was."""
    if before.schema == more.schema:
        return pl.concat([before, more])
    joined = rows_together([before, more], "key_by")
    if row_keys(joined) != [*row_keys(before), *row_keys(more)]:
        raise UserError(
            f"keys were of the types {[*map(str, before.dtypes)]}, and now they are of "
            f"{[*map(str, more.dtypes)]}, in which other keys are equal. Let key_by give keys of one type."
        )
    return joined


class Accumulator:
    """One number per slot, and how two numbers are merged."""

    def __init__(self, store: StateBackend[Any, Any], name: str, how: str) -> None:
        self._store = store
        self._name = name
        self.how = how
        pages = sorted(key[1] for key in store if key[0] == name)
        saved = [store.entries[name, page] for page in pages]
        self.values: Array = np.concatenate(saved) if saved else np.empty(0, np.int64)
        """64-bit integers or floats; Python objects for Decimals and larger numbers."""
        self._furthest = 2**63
        """An upper bound on the absolute value of the whole numbers."""
        self._pages = len(pages)
        self._share(0)

    def begin(self, slots: int) -> None:
        """Add slots that existed before this number was kept: they have seen no record."""
        if self._pages == 0 and slots:
            self._grow(-(-slots // PAGE) * PAGE, np.dtype(np.int64))
            self._pages = -(-slots // PAGE)
            self._share(0)
            self._store.touch((self._name, page) for page in range(self._pages))

    def update(self, slots: Array, column: pl.Series) -> None:
        """Merge one value into each of these slots, which may repeat."""
        values = self._ready(slots, column)
        with self._exactly(slots):
            _MEET[self.how].at(self.values, slots, values)
        self._touch(slots)

    def run(self, slots: Array, column: pl.Series, last: Array) -> Array:
        """Merge each row's value with its slot's; the rows at `last` become the slots' values."""
        values = self._ready(slots, column)
        with self._exactly(slots):
            met: Array = _MEET[self.how](self.values[slots], values)
            self.values[slots[last]] = met[last]
        self._touch(slots)
        return met

    def column(self, values: Array, like: pl.DataType) -> pl.Series:
        """Some of the values as a column of the type that their parts have."""
        if values.dtype.kind == "O":
            return _column(self._name, values, self.how, like)
        series = pl.Series(self._name, values)
        return series.cast(like) if like.is_temporal() else series

    @contextmanager
    def _exactly(self, slots: Array) -> Iterator[None]:
        """Adds Decimals without rounding; if one would be too large, all values stay unchanged."""
        if self.values.dtype.kind != "O":
            yield
            return
        before = self.values[slots]
        with localcontext(EXACT):
            yield
        if self.how == "add" and any(abs(value) >= LIMIT for value in self.values[slots]):
            self.values[slots] = before
            raise too_large(self._name.rpartition(".")[0])

    def _ready(self, slots: Array, column: pl.Series) -> Array:
        """The values as numbers of our type, with room made for these slots."""
        numbers = column if column.dtype.is_decimal() else column.to_physical()
        if not numbers.dtype.is_numeric() and numbers.dtype not in (pl.Null, pl.Boolean):
            raise UserError(
                f"'{self._name}' is of type {column.dtype}, but a running es.min or es.max needs "
                "numbers or times."
            )
        kind = self._kind_with(numbers)
        if kind.kind == "O":
            neutral = _neutral(self.how, kind)
            values: Array = np.empty(len(numbers), object)
            values[:] = [neutral if value is None else value for value in numbers.to_list()]
        else:
            fractions = numbers.dtype.is_float() or numbers.dtype.is_decimal()
            numbers = numbers.cast(pl.Float64 if fractions else pl.Int64)
            values = numbers.fill_null(0).to_numpy().astype(kind)
            if numbers.null_count():
                values[numbers.is_null().to_numpy()] = _neutral(self.how, kind)
        pages = int(slots.max()) // PAGE + 1
        if pages * PAGE > len(self.values) or kind != self.values.dtype:
            self._grow(pages * PAGE, kind)
        if pages > self._pages:
            before, self._pages = self._pages, pages
            self._share(before)
        return values

    def _kind_with(self, numbers: pl.Series) -> np.dtype[Any]:
        """The type that holds the present values and these numbers exactly."""
        now = self.values.dtype if len(self.values) else np.dtype(np.int64)
        if numbers.dtype.is_float() or now == np.float64:
            if now.kind == "O" and any(
                isinstance(value, Decimal) and value.is_finite() for value in self.values
            ):
                raise UserError(
                    f"the values for '{self._name.rpartition('.')[0]}' were Decimals until now and "
                    "are floats in this batch. The two cannot be added or compared exactly. Cast "
                    "the column to one of the two before the aggregate."
                )
            return np.dtype(np.float64)
        if numbers.dtype.is_decimal() or now.kind == "O" or not _fits(numbers):
            return np.dtype(object)
        if self.how == "add":
            low, high = (
                numbers.to_frame("n").select(low=pl.col("n").min(), high=pl.col("n").max()).row(0)
            )
            most = max(abs(low or 0), abs(high or 0)) * len(numbers)
            if self._furthest + most >= 2**63 and len(self.values):
                self._furthest = max(abs(int(self.values.min())), abs(int(self.values.max())))
            elif not len(self.values):
                self._furthest = 0
            self._furthest += most
            if self._furthest >= 2**63:
                return np.dtype(object)
        return np.dtype(np.int64)

    def _grow(self, size: int, kind: np.dtype[Any]) -> None:
        # Doubles the room, so that growing costs little per key in the long run.
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
        """The store's pages are views of this array; untouched ones count as unchanged."""
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

    def running_after(self, parts: pl.DataFrame, keep: Sequence[str]) -> pl.Schema | None:
        """The columns of the results, for parts with these columns: arrays hold 64 bits."""
        if not self.aggregates.known:
            return None
        wide: list[pl.Expr] = []
        for name in self.aggregates.part_names:
            kind = parts.schema[name]
            if kind.is_integer() or kind.is_float() or kind == pl.Boolean:
                wide.append(pl.col(name).cast(pl.Float64 if kind.is_float() else pl.Int64))
        return self.aggregates.results(parts.with_columns(wide), keep).schema

    def on_start(self, ctx: Context) -> None:
        kept = {"keys", *self.aggregates.part_names}
        for key in ctx.state:
            if key[0] not in kept:  # of an aggregate that was removed
                ctx.state.delete(key)
        self.open(ctx.state)

    def open(self, store: StateBackend[Any, Any]) -> None:
        self.slots = Slots(store)
        self.accumulators = {
            f"{name}.{part}": Accumulator(store, f"{name}.{part}", how)
            for name, one in self.aggregates.named.items()
            if isinstance(one, Simple)
            for part, how in one.hows.items()
        }
        for accumulator in self.accumulators.values():
            accumulator.begin(len(self.slots))

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        store = MemoryBackend[Any, Any]()
        self.open(store)
        for entries in kept_in(parts).values():
            pages = sorted(key[1] for key in entries if key[0] == "keys")
            if not pages:
                continue
            keys = rows_together([entries["keys", page] for page in pages], place.operator)
            rows = np.flatnonzero(self.owned(keys, place))
            if len(rows):
                self._take_over(entries, rows, self.slots.of(keys[rows]), store)
        return {CONTEXT_STATE: dict(store.pairs())}

    def owned(self, keys: pl.DataFrame, place: Place) -> list[bool]:
        return place.owns_rows(keys)

    def _take_over(
        self, entries: Entries, rows: Array, slots: Array, store: StateBackend[Any, Any]
    ) -> None:
        """Copies what an earlier shard had in some of its slots into these slots."""
        for name, accumulator in self.accumulators.items():
            accumulator.update(slots, saved_values(entries, name, accumulator.how)[rows])
        for name, one in self.aggregates.named.items():
            if isinstance(one, InPython):
                (column,) = one.part_names(name)
                for slot, other in zip(slots.tolist(), rows.tolist(), strict=True):
                    if (column, other) in entries:
                        store.put((column, slot), entries[column, other])


class RunningChanges(_Running):
    """Takes rows of parts; emits a row for each key that has changed."""

    def columns_after(self, inputs: Mapping[str, pl.Schema]) -> pl.Schema | None:
        parts = pl.DataFrame(schema=inputs[""])
        keys = parts.select(pl.exclude(self.aggregates.part_names)).columns
        merged = self.aggregates.merged(parts, keys)
        return self.running_after(merged, keys)

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        parts = columns_of(batch, ctx.operator)
        keys = parts.select(pl.exclude(self.aggregates.part_names))
        slots = self.slots.of(keys)
        # A key may come twice if several frames were joined on the way: its last row counts.
        rows = np.arange(len(slots))
        latest = np.empty(len(self.slots), np.int64)
        latest[slots] = rows
        last = np.flatnonzero(latest[slots] == rows)
        columns = []
        for name, accumulator in self.accumulators.items():
            accumulator.update(slots, parts.get_column(name))
            values = accumulator.values[slots[last]]
            columns.append(accumulator.column(values, parts.get_column(name).dtype))
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
            changed = changed.with_columns(_python_column(column, kept, given.dtype))
        return changed


class OfRecords(_Running):
    """Takes records, not rows of parts."""

    def columns_used(self, side: str) -> Sequence[Any]:
        return [column for one in self.aggregates.named.values() for column in one.columns_used]

    def columns_after(self, inputs: Mapping[str, pl.Schema]) -> pl.Schema | None:
        frame = pl.DataFrame(schema=inputs[""])
        running = frame.with_columns(
            expression.alias(column)
            for name, one in self.aggregates.named.items()
            if isinstance(one, Simple)
            for column, expression in one.running(name, frame).items()
        )
        return self.running_after(running, frame.columns)

    def owned(self, keys: pl.DataFrame, place: Place) -> list[bool]:
        keying = place.keying[""]
        if not keying.on_columns and keys.columns[0] == "key_0":
            return place.owns(keys.rows())
        if keying.on_columns and keys.width == 1 and ".as_struct(" in str(keying.selector):
            raise UserError(
                f"operator '{place.operator}' is keyed by a struct of one column, so its number of "
                "shards cannot change. Give key_by the column itself."
            )
        return place.owns(row_keys(keys))

    def refuse_names(self, twice: set[str], ctx: Context) -> None:
        """Raise a UserError if a column would be there twice."""
        if twice:
            raise UserError(
                f"'{ctx.operator}': the records already have a column '{twice.pop()}'. Give the "
                "aggregate another name."
            )

    def numbered(self, keys: pl.DataFrame) -> tuple[pl.DataFrame, Array, Array, Array]:
        """The keys of a batch, each once; the slot of each row; its number among the rows of its key,
        from 1; and the last row of each of the keys."""
        row = pl.int_range(pl.len(), dtype=pl.Int64).alias("__row")
        groups = keys.lazy().with_columns(row).group_by(keys.columns).agg("__row").collect()
        rows = groups.get_column("__row")
        order, sizes = rows.explode().to_numpy(), rows.list.len().to_numpy()
        slots = np.empty(len(keys), np.int64)
        slots[order] = np.repeat(self.slots.of(groups.drop("__row")), sizes)
        ends = np.cumsum(sizes)
        last = order[ends - 1]
        # The position of each record among those of its key in this batch: all that a count needs.
        nth = np.empty(len(keys), np.int64)
        nth[order] = np.arange(1, len(keys) + 1) - np.repeat(ends - sizes, sizes)
        return groups.drop("__row"), slots, nth, last


class RunningRecords(OfRecords):
    """Emits each record with the aggregates up to it."""

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        ctx.emit_batch(self.with_aggregates(records_frame(batch, ctx), batch, ctx))

    def with_aggregates(self, frame: pl.DataFrame, batch: Batch, ctx: Context) -> pl.DataFrame:
        """The records with further columns."""
        self.refuse_names(set(frame.columns) & set(self.aggregates.named), ctx)
        _, slots, nth, last = self.numbered(key_frame(ctx.keying, batch))
        slotted = frame.with_columns(pl.Series("__slot", slots), pl.Series("__nth", nth))
        running = slotted.select(
            (pl.col("__nth") if _counts_records(one) else expression.over("__slot")).alias(column)
            for name, one in self.aggregates.named.items()
            if isinstance(one, Simple)
            for column, expression in one.running(name, frame).items()
        )
        columns = [
            self.accumulators[name].column(
                self.accumulators[name].run(slots, running.get_column(name), last),
                running.get_column(name).dtype,
            )
            for name in running.columns
        ]
        return self.aggregates.results(frame.with_columns(*columns), frame.columns)


def _python_column(name: str, values: list[Any], like: pl.DataType) -> pl.Series:
    """Values of earlier batches may need a wider type than those of this one: none is rounded."""
    column = pl.Series(name, values, dtype=like, strict=False)
    return column if column.to_list() == values else pl.Series(name, values)


def _counts_records(one: Aggregate) -> bool:
    return isinstance(one, Count) and one.column is None


def _fits(numbers: pl.Series) -> bool:
    """Whether each is a whole number of 64 bits."""
    if numbers.dtype not in (pl.UInt64, pl.Int128, pl.UInt128):
        return True
    return bool(numbers.is_between(-(2**63), 2**63 - 1).all())


def _column(name: str, values: Array, how: str, like: pl.DataType) -> pl.Series:
    """Decimals or whole numbers of any size; null where nothing has come."""
    neutral = None if how == "add" else _neutral(how, np.dtype(object))
    numbers = [None if value == neutral else value for value in values]
    if like.is_decimal() or any(isinstance(value, Decimal) for value in numbers):
        scale = like.scale if like.is_decimal() else 0  # type: ignore[attr-defined]
        return decimals(name, numbers, max(scale, scale_of(numbers)))
    series = pl.Series(name, numbers, dtype=pl.Int128)
    return series.cast(pl.Int64) if _fits(series) else series


def _neutral(how: str, kind: np.dtype[Any]) -> Any:
    """The value that changes nothing when merged with another."""
    if how == "add":
        return 0
    if kind.kind == "O":
        return Decimal("Infinity") if how == "min" else Decimal("-Infinity")
    if kind.kind == "f":
        return np.inf if how == "min" else -np.inf
    limits = np.iinfo(kind)
    return limits.max if how == "min" else limits.min


def saved_values(entries: Entries, name: str, how: str) -> pl.Series:
    """The values saved under this name, slot by slot; null where no record had come."""
    pages = sorted(key[1] for key in entries if key[0] == name)
    values: Array = np.concatenate([entries[name, page] for page in pages])
    if values.dtype.kind == "O":
        return _column(name, values, how, pl.Int64())
    untouched = values == _neutral(how, values.dtype)
    return pl.Series(values).set(pl.Series(untouched), None)
