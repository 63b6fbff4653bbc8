"""DataFrames in a key store, so that checkpoints stay small: what is added is a chunk of its own.

Chunks are kept in groups (a pane of time, for example), each of which is read and dropped as one.
Once the chunks behind the first one of a group outgrow it, they are all joined into one: every row
is moved a few times at most, and a checkpoint holds little more than what has come since the last.
"""

from collections.abc import Callable, Iterable
from typing import Any

import polars as pl

from everstream.state.keystore import KeyStore

SMALL_ROWS = 16_384
MOST_CHUNKS = 64


class Chunks:
    """Groups of rows under one name of a key store; `compact` may make fewer rows of many."""

    def __init__(
        self,
        store: KeyStore[Any, Any],
        name: str,
        compact: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    ) -> None:
        self._store = store
        self._name = name
        self._compact = compact
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

    @property
    def groups(self) -> list[int]:
        return sorted(self._groups)

    def __contains__(self, group: int) -> bool:
        return group in self._groups

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, group: int, rows: pl.DataFrame) -> None:
        numbers = self._groups.get(group)
        if numbers is None:
            self._groups[group], self._tails[group] = [0], 0
            self._store.put((self._name, group, 0), rows)
            return
        numbers.append(numbers[-1] + 1)
        self._store.put((self._name, group, numbers[-1]), rows)
        self._tails[group] += len(rows)
        first = len(self._chunk(group, numbers[0]))
        if self._tails[group] > max(first, SMALL_ROWS) or len(numbers) > MOST_CHUNKS:
            joined = self.read([group])
            self.drop(group)
            self.add(group, self._compact(joined) if self._compact else joined.rechunk())

    def read(self, groups: Iterable[int]) -> pl.DataFrame:
        """All rows of these groups; at least one of them must be there."""
        chunks = [
            self._chunk(group, number)
            for group in groups
            if group in self._groups
            for number in self._groups[group]
        ]
        if len(chunks) == 1:
            return chunks[0]
        return pl.concat(chunks, how="vertical_relaxed")

    def drop(self, group: int) -> None:
        for number in self._groups.pop(group):
            self._store.delete((self._name, group, number))
        del self._tails[group]

    def _chunk(self, group: int, number: int) -> pl.DataFrame:
        chunk: pl.DataFrame = self._store[self._name, group, number]
        return chunk
