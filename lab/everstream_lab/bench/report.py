"""One form for everything that is measured: a figure, and a report of figures.

A benchmark returns a `Report`, and `everstream_lab.cli.showing` prints it and writes it to a file. This
module imports nothing heavy: workers import the benchmarks while a clock runs.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_high
from typing import Any, Literal

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """What a figure should reach."""

    bound: Literal["at least", "at most", "within"]
    value: float
    of: Literal["value", "ratio"] = "value"
    required: bool = False
    """Whether a benchmark that misses it has failed, as one that loses records."""

    def __str__(self) -> str:
        return f"{'ratio ' if self.of == 'ratio' else ''}{self.bound} {shown(self.value)}"


def at_least(value: float, of: Literal["value", "ratio"] = "value") -> Target:
    return Target("at least", value, of)


def at_most(value: float) -> Target:
    return Target("at most", value)


@dataclass(frozen=True)
class Figure:
    """One measured value."""

    name: str
    value: float
    unit: str = ""
    target: Target | None = None
    ratio: float | None = None
    """To what the benchmark compares it with, measured in the same run."""
    repetitions: tuple[float, ...] = ()
    """The value in each round, if there were several."""
    beside: str = ""
    """What others measured, in words."""

    @classmethod
    def median(
        cls, name: str, rounds: Iterable[float], unit: str = "", target: Target | None = None
    ) -> "Figure":
        """The middle one of some rounds, which is one that was measured."""
        repetitions = tuple(rounds)
        return cls(name, median_high(repetitions), unit, target, repetitions=repetitions)

    @property
    def spread(self) -> float | None:
        """Between the least and the greatest repetition."""
        if len(self.repetitions) < 2:
            return None
        return max(self.repetitions) - min(self.repetitions)

    @property
    def reached(self) -> bool | None:
        """Whether it reached its target, if it has one."""
        if self.target is None:
            return None
        value = self.ratio if self.target.of == "ratio" else self.value
        assert value is not None, f"{self.name} has a target for its ratio and no ratio"
        match self.target.bound:
            case "at least":
                return value >= self.target.value
            case "at most":
                return value <= self.target.value
            case "within":
                return abs(value) <= self.target.value

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "unit": self.unit,
            "target": None if self.target is None else str(self.target),
            "reached": self.reached,
            "ratio": self.ratio,
            "repetitions": list(self.repetitions),
            "spread": self.spread,
            "beside": self.beside,
        }


def exactness(lost: int, duplicated: int) -> list[Figure]:
    """Nothing may be lost or duplicated: a benchmark of wrong output measures nothing."""
    none = Target("at most", 0, required=True)
    return [
        Figure("lost", lost, "records", none),
        Figure("duplicated", duplicated, "records", none),
    ]


@dataclass
class Report:
    """The figures of one benchmark."""

    benchmark: str
    figures: list[Figure]
    settings: dict[str, Any] = field(default_factory=dict)
    """With what it was measured."""
    details: Any = None
    """What the figures were made of, where they do not say it."""

    def __getitem__(self, name: str) -> Figure:
        return self._by_name()[name]

    @property
    def failed(self) -> list[Figure]:
        """Those that missed a target that is required."""
        return [
            figure
            for figure in self.figures
            if figure.target is not None and figure.target.required and not figure.reached
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "figures": {name: figure.to_json() for name, figure in self._by_name().items()},
            "settings": {"cores": os.cpu_count() or 1, **self.settings},
            "details": self.details,
        }

    def _by_name(self) -> dict[str, Figure]:
        named = {figure.name: figure for figure in self.figures}
        assert len(named) == len(self.figures), "two figures have one name"
        return named


def shown(value: float) -> str:
    """A number for a table, with the digits that mean something."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.2f} M"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def with_earlier(earlier: Mapping[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """A report as JSON, together with the figures of parts that were measured before."""
    return {**body, "figures": {**earlier.get("figures", {}), **body["figures"]}}
