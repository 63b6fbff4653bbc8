"""Rates over time, their integrals, and the inverse: when the n-th item is due.

All are exact and work on whole arrays. A rate is piecewise linear, so its integral is a piecewise
parabola and the inverse a square root; or a sine, whose inverse is found by Newton's method between
bounds. Where the rate is zero for a while, the inverse is the earliest moment.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from everstream.errors import UserError

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
GROW_BY = 1024
MOST_STEPS = 10_000_000
"""A rate that has given nothing for this many steps never will."""


class Rate(ABC):
    """Items per second as a function of the seconds since the start."""

    @abstractmethod
    def rate(self, at_s: Floats) -> Floats:
        """Items per second at these moments."""

    @abstractmethod
    def items(self, at_s: Floats) -> Floats:
        """How many items are due by these times: the integral."""

    @abstractmethod
    def due_s(self, numbers: Floats, until_s: float = np.inf) -> Floats:
        """When the items of these numbers (from 1 on, or parts of items) are due.

        Infinity for items that are never due, or maybe only after `until_s`.
        """


class Steady(Rate):
    """A constant rate: the most common load, computed several times for each frame."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s

    def rate(self, at_s: Floats) -> Floats:
        return np.full_like(at_s, self._per_s)

    def items(self, at_s: Floats) -> Floats:
        return self._per_s * at_s

    def due_s(self, numbers: Floats, until_s: float = np.inf) -> Floats:
        return np.maximum(numbers, 0.0) / self._per_s


class Pieces(Rate):
    """A piecewise linear rate, from `left` to `right` between each two of the times.

    With `repeats` it begins again at the last of the times; without, the last value stays.
    """

    def __init__(
        self,
        times_s: Sequence[float] | Floats,
        left: Sequence[float] | Floats,
        right: Sequence[float] | Floats,
        *,
        repeats: bool,
    ) -> None:
        self._from_s = np.asarray(times_s, float)
        lasts_s = np.diff(self._from_s)
        self._left, right = np.asarray(left, float), np.asarray(right, float)
        with np.errstate(invalid="ignore", divide="ignore"):
            self._slope = np.where(lasts_s > 0, (right - self._left) / lasts_s, 0.0)
        given = (self._left + right) / 2 * lasts_s
        self._before = np.concatenate([[0.0], np.cumsum(given)])
        self._repeats = repeats
        self._last = float(right[-1])

    @property
    def _period_s(self) -> float:
        return float(self._from_s[-1])

    @property
    def _total(self) -> float:
        return float(self._before[-1])

    def rate(self, at_s: Floats) -> Floats:
        _, within_s = self._wrapped(at_s)
        piece = self._piece_at(within_s)
        inside: Floats = self._left[piece] + self._slope[piece] * (within_s - self._from_s[piece])
        if self._repeats:
            return inside
        return np.where(within_s >= self._period_s, self._last, inside)

    def items(self, at_s: Floats) -> Floats:
        rounds, within_s = self._wrapped(at_s)
        beyond_s = np.maximum(within_s - self._period_s, 0.0)
        within_s = np.minimum(within_s, self._period_s)
        piece = self._piece_at(within_s)
        passed_s = within_s - self._from_s[piece]
        given = (self._left[piece] + self._slope[piece] * passed_s / 2) * passed_s
        items: Floats = rounds * self._total + self._before[piece] + given
        return items + self._last * beyond_s

    def due_s(self, numbers: Floats, until_s: float = np.inf) -> Floats:
        rounds = np.zeros_like(numbers)
        if self._repeats:
            rounds = np.maximum(np.ceil(numbers / self._total) - 1, 0.0)
        rest = numbers - rounds * self._total
        inside = np.minimum(rest, self._total)
        piece = np.clip(np.searchsorted(self._before, inside, "left") - 1, 0, len(self._left) - 1)
        passed_s = _passed_s(inside - self._before[piece], self._left[piece], self._slope[piece])
        due_s: Floats = rounds * self._period_s + self._from_s[piece] + passed_s
        beyond = np.maximum(rest - inside, 0.0)
        if self._repeats or not beyond.any():
            return due_s
        with np.errstate(divide="ignore", invalid="ignore"):
            later_s = self._period_s + beyond / np.float64(self._last)
        return np.where(beyond > 0, later_s, due_s)

    def _wrapped(self, at_s: Floats) -> tuple[Floats, Floats]:
        if not self._repeats:
            return np.zeros_like(at_s), at_s
        rounds = np.floor(at_s / self._period_s)
        return rounds, at_s - rounds * self._period_s

    def _piece_at(self, within_s: Floats) -> Any:
        piece = np.searchsorted(self._from_s, within_s, "right") - 1
        return np.clip(piece, 0, len(self._left) - 1)


class Wave(Rate):
    """A sine between two values: it begins in the middle and rises."""

    def __init__(self, period_s: float, least: float, most: float) -> None:
        self._period_s = period_s
        self._swing = (most - least) / 2
        self._middle = self._swing + least
        self._turn = 2 * np.pi / period_s

    def rate(self, at_s: Floats) -> Floats:
        return self._swing * np.sin(self._turn * at_s) + self._middle

    def items(self, at_s: Floats) -> Floats:
        # 1 - cos(x) as 2 sin(x/2)^2, which stays exact for a small x.
        swung: Floats = 2 * self._swing / self._turn * np.sin(self._turn * at_s / 2) ** 2
        return self._middle * at_s + swung

    def due_s(self, numbers: Floats, until_s: float = np.inf) -> Floats:
        total = self._middle * self._period_s
        rounds = np.maximum(np.ceil(numbers / total) - 1, 0.0)
        rest = numbers - rounds * total
        low, high = np.zeros_like(rest), np.full_like(rest, self._period_s)
        at_s = rest / self._middle
        for _ in range(100):
            missing = rest - self.items(at_s)
            low, high = np.where(missing > 0, at_s, low), np.where(missing > 0, high, at_s)
            rate = self.rate(at_s)
            with np.errstate(divide="ignore", invalid="ignore"):
                better = at_s + missing / rate
            inside = (better >= low) & (better <= high)
            better = np.where(inside, better, (low + high) / 2)
            done = bool(np.all(np.abs(better - at_s) <= 1e-15 * self._period_s))
            at_s = better
            if done:
                break
        whole: Floats = rounds * self._period_s + at_s
        return whole


class Grown(Rate):
    """Steps of equal length, computed as far as needed."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._forget()

    def _forget(self) -> None:
        self._left = self._right = np.empty(0)
        self._before = np.zeros(1)

    @abstractmethod
    def _next(self, first: int, count: int) -> tuple[Floats, Floats]:
        """The rates at the beginning and at the end of `count` more steps."""

    def _grow(self) -> None:
        left, right = self._next(len(self._left), max(GROW_BY, len(self._left) // 2))
        given = np.cumsum((left + right) / 2 * self._step_s)
        self._before = np.concatenate([self._before, self._before[-1] + given])
        self._left = np.concatenate([self._left, left])
        self._right = np.concatenate([self._right, right])

    def _place(self, at_s: Floats) -> tuple[Any, Floats]:
        step = np.floor(at_s / self._step_s).astype(np.int64)
        while len(self._left) <= step.max(initial=0):
            self._grow()
        return step, at_s - step * self._step_s

    def _slope(self, step: Any) -> Floats:
        slope: Floats = (self._right[step] - self._left[step]) / self._step_s
        return slope

    def rate(self, at_s: Floats) -> Floats:
        step, passed_s = self._place(at_s)
        rate: Floats = self._left[step] + self._slope(step) * passed_s
        return rate

    def items(self, at_s: Floats) -> Floats:
        step, passed_s = self._place(at_s)
        given = (self._left[step] + self._slope(step) * passed_s / 2) * passed_s
        items: Floats = self._before[step] + given
        return items

    def due_s(self, numbers: Floats, until_s: float = np.inf) -> Floats:
        most = numbers.max(initial=0.0)
        enough = min(until_s / self._step_s, MOST_STEPS)
        while self._before[-1] < most and len(self._left) <= enough:
            self._grow()
        inside = np.minimum(numbers, self._before[-1])
        step = np.clip(np.searchsorted(self._before, inside, "left") - 1, 0, len(self._left) - 1)
        passed_s = _passed_s(inside - self._before[step], self._left[step], self._slope(step))
        return np.where(numbers > inside, np.inf, step * self._step_s + passed_s)

    def __getstate__(self) -> dict[str, Any]:
        """Computed steps are not pickled; they are computed again."""
        grown = ("_left", "_right", "_before")
        return {name: value for name, value in vars(self).items() if name not in grown}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


class Walk(Grown):
    """At each step the rate moves randomly by at most `stride`, and turns back at the bounds."""

    def __init__(self, step_s: float, least: float, most: float, stride: float, seed: int) -> None:
        self._least, self._most, self._stride, self._seed = least, most, stride, seed
        super().__init__(step_s)

    def _forget(self) -> None:
        super()._forget()
        self._chance = np.random.default_rng(self._seed)
        self._at = (self._most - self._least) / 2

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_chance", "_at")}

    def _next(self, first: int, count: int) -> tuple[Floats, Floats]:
        moves = self._chance.uniform(-self._stride, self._stride, count)
        if first == 0:
            moves[0] = 0.0
        free = self._at + np.cumsum(moves)
        self._at = float(free[-1])
        # A walk that is reflected at both ends is a free walk, folded.
        width = self._most - self._least
        folded = np.abs((free + width) % (2 * width) - width) if width else np.zeros(count)
        rates = self._least + folded
        return rates, rates


class Sampled(Grown):
    """A function of the time, sampled at an interval and linear in between."""

    def __init__(self, function: Callable[[float], float], step_s: float) -> None:
        self._function = function
        super().__init__(step_s)

    def _next(self, first: int, count: int) -> tuple[Floats, Floats]:
        values = np.array([self._value(first + number) for number in range(count + 1)])
        return values[:-1], values[1:]

    def _value(self, step: int) -> float:
        at_s = step * self._step_s
        value = float(self._function(at_s))
        if not 0 <= value < np.inf:
            raise UserError(
                f"the load's function gave {value} at {at_s:g} s: return items per second, from 0 up."
            )
        return value


def _passed_s(given: Floats, rate: Floats, slope: Floats) -> Floats:
    """How long it takes to give this much from this rate on: the root, without cancellation."""
    root = np.sqrt(np.maximum(rate * rate + 2 * slope * given, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(given > 0, 2 * given / (rate + root), 0.0)
