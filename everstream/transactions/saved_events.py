"""Events in an operator's state, for the recovery scheme that runs them again."""

from typing import Any

import polars as pl

from everstream.state.keystore import KeyStore


class SavedEvents:
    """The events since the snapshot, kept in the state for `fast`, which runs them again."""

    _KEY = "events"

    def __init__(self, state: KeyStore[Any, Any]) -> None:
        self._state = state

    def add(self, first_event: int, events: pl.DataFrame) -> None:
        self._state.put(f"{self._KEY}-{first_event:012d}", events)

    def between(self, first: int, last: int) -> pl.DataFrame:
        """The events with these numbers; commits and saved events begin at the same ones."""
        parts: list[pl.DataFrame] = [
            self._state[key] for key in self._keys() if first <= self._number(key) < last
        ]
        return pl.concat(parts, how="vertical_relaxed")

    def clear(self) -> None:
        for key in self._keys():
            del self._state[key]

    def _keys(self) -> list[str]:
        found = (key for key in self._state if isinstance(key, str))
        return sorted(key for key in found if key.startswith(f"{self._KEY}-"))

    def _number(self, key: str) -> int:
        return int(key.rpartition("-")[2])
