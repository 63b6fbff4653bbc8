"""A log, and events, in an operator's state, so that a pipeline's checkpoints make them durable.

A block is an entry of bytes that never changes. So a checkpoint writes only the blocks since the
one before, and shares them with the running operator instead of copying them. A rollback removes
exactly the blocks that came after it.
"""

from typing import Any

import polars as pl

from everstream.pipeline.batch import rows_together
from everstream.state.backends.protocol import StateBackend
from everstream.transactions.log import SNAPSHOT
from everstream.transactions.store import Store

Part = tuple[str, int]


class StateLog(Store):
    """Objects as entries (name, part) of a key store; other keys of the store are not touched."""

    snapshots_kept = 1
    """The checkpoint store has older checkpoints, in case this one is damaged."""

    def __init__(self, state: StateBackend[Any, Any]) -> None:
        self._state = state

    def append(self, name: str, data: bytes) -> None:
        self._state.put((name, len(self._parts(name))), data)

    def sync(self) -> None:
        """The checkpoint does that."""

    def put(self, name: str, data: bytes) -> None:
        self.delete(name)
        self._state.put((name, 0), data)

    def get(self, name: str) -> bytes:
        return b"".join(self._state[part] for part in self._parts(name))

    def names(self) -> list[str]:
        return sorted({key[0] for key in self._state if isinstance(key, tuple)})

    def delete(self, name: str) -> None:
        for part in self._parts(name):
            del self._state[part]

    def seal(self) -> None:
        """There are no files."""

    def _parts(self, name: str) -> list[Part]:
        return sorted(key for key in self._state if isinstance(key, tuple) and key[0] == name)

    def sizes_bytes(self) -> tuple[int, int]:
        """The sizes of the snapshot and of the blocks after it."""
        snapshot = blocks = 0
        for name in self.names():
            size_bytes = sum(len(self._state[part]) for part in self._parts(name))
            if name.startswith(SNAPSHOT):
                snapshot += size_bytes
            else:
                blocks += size_bytes
        return snapshot, blocks


class SavedEvents:
    """The events since the snapshot, kept in the state for a scheme that runs them again."""

    _KEY = "events"

    def __init__(self, state: StateBackend[Any, Any]) -> None:
        self._state = state

    def add(self, first_event: int, events: pl.DataFrame) -> None:
        self._state.put(f"{self._KEY}-{first_event:012d}", events)

    def between(self, first: int, last: int) -> pl.DataFrame:
        """The events with these numbers; commits and saved events begin at the same ones."""
        parts: list[pl.DataFrame] = [
            self._state[key] for key in self._keys() if first <= self._number(key) < last
        ]
        return rows_together(parts, "transact")

    def clear(self) -> None:
        for key in self._keys():
            del self._state[key]

    def _keys(self) -> list[str]:
        names = (key for key in self._state if isinstance(key, str))
        return sorted(key for key in names if key.startswith(f"{self._KEY}-"))

    def _number(self, key: str) -> int:
        return int(key.rpartition("-")[2])
