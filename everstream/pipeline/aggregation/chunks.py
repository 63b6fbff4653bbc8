"""DataFrames in a key store. Added rows become a new chunk, so checkpoints stay small.

Chunks are kept in groups (a pane of time, for example), each of which is read and dropped as one.
Once the later chunks of a group outgrow the first, they are all joined into one. Every row is
moved a few times at most, and a checkpoint holds little more than the rows since the last one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from everstream.errors import InternalError
from everstream.pipeline.batch import rows_together
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries
from everstream.pipeline.operator import Context
from everstream.state.backends.protocol import StateBackend

SMALL_ROWS = 16_384
MOST_CHUNKS = 64
TIME = "__time"
"""The column of the times of rows, in microseconds, for groups of time."""
_OVERDUE = "overdue"
"""Rows to emit once, before anything else."""


def renamed_chunks(store: StateBackend[Any, Any], old: str, new: str) -> None:
    """Move the chunks under one name to another name, which has none."""
    for key in store:
        if isinstance(key, tuple) and key[0] == old:
            store.put((new, *key[1:]), store[key])
            store.delete(key)


class Chunks:
    """Groups of rows under one name of a key store; `compact` may reduce the rows of a group."""

    def __init__(
        self,
        store: StateBackend[Any, Any],
        name: str,
        compact: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
        owner: str = "",
        small_rows: int = SMALL_ROWS,
    ) -> None:
        """owner: the operator whose they are, for errors. small_rows: later chunks with fewer rows than
        this are not joined with the first yet."""
        self._store = store
        self._owner = owner or name
        self._schema: pl.Schema | None = None
        """In which all rows can be read together, as far as that was found out."""
        self._name = name
        self._compact = compact
        self._small_rows = small_rows
        self._groups: dict[int, list[int]] = {}
        """Group -> the numbers of its chunks."""
        self._tails: dict[int, int] = {}
        """Group -> the rows in all chunks but the first."""
        for key in store:
            if isinstance(key, tuple) and key[0] == name:
                self._groups.setdefault(key[1], []).append(key[2])
        for group, numbers in self._groups.items():
            numbers.sort()
            self._tails[group] = sum(len(self._chunk(group, n)) for n in numbers[1:])

    def fit(self, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        """Change the columns of each chunk; its rows stay where they are."""
        for group, numbers in self._groups.items():
            for number in numbers:
                before = self._chunk(group, number)
                after = change(before)
                if after.columns != before.columns:
                    self._store.put((self._name, group, number), after)

    @property
    def groups(self) -> list[int]:
        return sorted(self._groups)

    @property
    def rows(self) -> int:
        """How many rows there are in all groups."""
        return sum(
            len(self._chunk(group, numbers[0])) + self._tails[group]
            for group, numbers in self._groups.items()
        )

    def __contains__(self, group: int) -> bool:
        return group in self._groups

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, group: int, rows: pl.DataFrame) -> None:
        self._require_alike(rows)
        numbers = self._groups.get(group)
        if numbers is None:
            self._groups[group], self._tails[group] = [0], 0
            self._store.put((self._name, group, 0), rows)
            return
        numbers.append(numbers[-1] + 1)
        self._store.put((self._name, group, numbers[-1]), rows)
        self._tails[group] += len(rows)
        first = len(self._chunk(group, numbers[0]))
        if self._tails[group] > max(first, self._small_rows) or len(numbers) > MOST_CHUNKS:
            joined = self.read([group])
            self.drop(group)
            compacted = self._compact(joined) if self._compact else joined.rechunk()
            if not compacted.is_empty():
                self.add(group, compacted)

    def add_by_time(self, rows: pl.DataFrame, width_us: int) -> None:
        """Add rows to the groups of their times, each of which spans this much time."""
        times = rows.get_column(TIME)
        self.add_by(rows, times - times % width_us)

    def add_by(self, rows: pl.DataFrame, groups: pl.Series) -> None:
        """Add each row to the group that is given for it."""
        first = groups.min()
        if first == groups.max():
            self.add(int(first), rows)  # type: ignore[arg-type]
            return
        for group in groups.unique().to_list():
            self.add(group, rows.filter(groups == group))

    def _require_alike(self, rows: pl.DataFrame) -> None:
        """A UserError, before anything is kept, if these could not be read together with the others."""
        if rows.schema == self._schema:
            return
        # Those that are there now, so that a restart changes nothing about what fits.
        there = [self._chunk(group, n) for group, numbers in self._groups.items() for n in numbers]
        known = rows_together([rows.head(0), *(chunk.head(0) for chunk in there)], self._owner)
        for frame in (rows, *there):
            if frame.schema != known.schema:
                rows_together([known, frame], self._owner)
        self._schema = known.schema

    def read(self, groups: Iterable[int]) -> pl.DataFrame:
        """All rows of these groups; at least one of the groups must exist."""
        chunks = [
            self._chunk(group, number)
            for group in groups
            if group in self._groups
            for number in self._groups[group]
        ]
        if len(chunks) == 1:
            return chunks[0]
        return rows_together(chunks, self._owner)

    def drop(self, group: int) -> None:
        for number in self._groups.pop(group):
            self._store.delete((self._name, group, number))
        del self._tails[group]

    def _chunk(self, group: int, number: int) -> pl.DataFrame:
        chunk: pl.DataFrame = self._store[self._name, group, number]
        return chunk


def redistribute_chunks(
    parts: Iterable[Entries], name: str, owns: Callable[[pl.DataFrame], list[bool]]
) -> dict[Any, pl.DataFrame]:
    """The entries for the rows that one shard owns, from what several shards kept under this name."""
    mine: dict[Any, pl.DataFrame] = {}
    counts: dict[int, int] = {}
    for entries in parts:
        for key, rows in entries.items():
            if not isinstance(key, tuple) or key[0] != name:
                continue
            owned = rows.filter(owns(rows))
            if len(owned):
                group = key[1]
                mine[name, group, counts.setdefault(group, 0)] = owned
                counts[group] += 1
    return mine


def kept_in(parts: Mapping[int, Mapping[str, Entries]]) -> dict[int, Entries]:
    """What each earlier shard had in its `ctx.state`."""
    return {number: states.get(CONTEXT_STATE, {}) for number, states in parts.items()}


def overdue_in(rows: Sequence[pl.DataFrame], kept: Mapping[int, Entries]) -> dict[Any, Any]:
    """An entry for rows that the new shard must emit, if there are any."""
    if any(_OVERDUE in entries for entries in kept.values()):
        raise InternalError("rows that were to be emitted at the start are still there")
    return {_OVERDUE: list(rows)} if rows else {}


def emit_overdue(ctx: Context) -> None:
    """Emit the rows of such an entry."""
    for rows in ctx.state.get(_OVERDUE, ()):
        ctx.emit_batch(rows)
    ctx.state.delete(_OVERDUE)
