"""Figures over time in bounded memory: the newest as they came, older ones ever thinner."""

from collections.abc import Mapping

POINTS = 600
NAMES = (
    "in_per_s",
    "out_per_s",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "cpu",
    "memory_bytes",
    "behind",
)


class Series:
    """Columns of equal length, one of them the time."""

    def __init__(self, points: int = POINTS) -> None:
        self._points = points
        self._at: list[float] = []
        self._columns: dict[str, list[float | None]] = {name: [] for name in NAMES}

    def add(self, at: float, figures: Mapping[str, float | None]) -> None:
        self._at.append(round(at, 3))
        for name, column in self._columns.items():
            column.append(figures.get(name))
        if len(self._at) > self._points:
            # Every second one of the older half goes; what has been thinned before gets thinner.
            older = slice(1, self._points // 2, 2)
            del self._at[older]
            for column in self._columns.values():
                del column[older]

    def to_json(self) -> dict[str, list[float] | list[float | None]]:
        return {"at": list(self._at), **{name: list(c) for name, c in self._columns.items()}}
