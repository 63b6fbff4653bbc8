"""`Load`: how many items per second a source should give, as it changes over time.

The patterns are those of SPBench (wave, binary, increasing, decreasing, spike), a random walk, a
function of the time, and a trace from a file. A load is exact: it gives how many items are due by
any moment, and when the n-th is due, rather than how long to wait between two of them. A rate is
piecewise linear, so its integral is a piecewise parabola and the inverse a square root; or a sine,
whose inverse is found by Newton's method between bounds. Where the rate is zero for a while, the
inverse is the earliest moment. All of it works on whole arrays.
"""

import difflib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar, get_args, overload

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.checkpointing import seconds

T = TypeVar("T")
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


class ByItem(Rate):
    """A rate that depends on how many items were given, not on the time: `shape` counts in items."""

    def __init__(self, shape: Rate) -> None:
        self._shape = shape
        self._due_s = np.zeros(1)

    def _grow(self) -> None:
        given = len(self._due_s) - 1
        numbers = np.arange(given, given + max(GROW_BY, given // 2), dtype=float)
        passed_s = np.cumsum(1.0 / self._shape.rate(numbers))
        self._due_s = np.concatenate([self._due_s, self._due_s[-1] + passed_s])

    def rate(self, at_s: Floats) -> Floats:
        return self._shape.rate(np.floor(self.items(at_s)))

    def items(self, at_s: Floats) -> Floats:
        while self._due_s[-1] <= at_s.max(initial=0.0):
            self._grow()
        given = np.searchsorted(self._due_s, at_s, "right") - 1
        since_s = at_s - self._due_s[given]
        items: Floats = given + since_s / (self._due_s[given + 1] - self._due_s[given])
        return items

    def due_s(self, numbers: Floats, until_s: float = np.inf) -> Floats:
        most = numbers.max(initial=0.0)
        while len(self._due_s) - 1 <= most and self._due_s[-1] <= until_s:
            self._grow()
        known = len(self._due_s) - 1
        whole = np.clip(np.floor(numbers), 0, known - 1).astype(np.int64)
        part = numbers - whole
        due_s = self._due_s[whole] + part * (self._due_s[whole + 1] - self._due_s[whole])
        return np.where(numbers > known, np.inf, due_s)

    def __getstate__(self) -> dict[str, Any]:
        """Computed moments are not pickled; they are computed again."""
        return {"_shape": self._shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._shape = state["_shape"]
        self._due_s = np.zeros(1)


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


Pattern: TypeAlias = Literal["wave", "binary", "increasing", "decreasing", "spike", "random-walk"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
ONCE = ("increasing", "decreasing")
"""These happen once; the others repeat every period."""
RESOLUTION = "10ms"
ITEMS = "items"
"""The unit of a period that counts items instead of time."""
CALIBRATED_MIN, CALIBRATED_MAX, CALIBRATED_PERIODS = 0.1, 1.1, 3


class Load:
    """Items per second over time: a number, a pattern, or a function of the seconds since the start.

    - `es.Load(500)`: a constant rate.
    - `es.Load("wave", period="10s", min=100, max=1000)`: a sine that begins in the middle; "binary":
      `min` for half a period, then `max`; "increasing" and "decreasing": once, within a period;
      "spike": `min`, and in the last `spike` per cent of each period up to `max`, then `min` at once;
      "random-walk": each period the rate moves by at most a tenth of the range, from `seed`.
      With `period="1000 items"` the pattern follows the number of items given, not the time.
    - `es.Load(lambda t: 100 + 5 * t)`: the function is called every `resolution`.
    - `es.Load.trace("trace.csv")`, `es.Load.parse("wave,10s,100,1000")`.

    >>> load = es.Load("wave", period="10s", min=100, max=1000)
    >>> load.rate(2.5), load.items(10), load.due_s(5500)
    (1000.0, 5500.0, 10.0)
    >>> numbers = es.Paced(es.Range(200), es.Load("binary", period="100ms", min=0, max=9000))
    >>> len(es.Pipeline("loaded").source(numbers).collect().run().collected())
    200
    """

    def __init__(
        self,
        pattern: Pattern | float | Callable[[float], float],
        *,
        period: str | float | None = None,
        min: float | None = None,
        max: float | None = None,
        spike: float = 10,
        seed: int = 0,
        resolution: str | float = RESOLUTION,
    ) -> None:
        self.text: str | None = None
        """The load as text for `parse`; None if it has no such text."""
        self._rate: Rate
        if isinstance(pattern, str):
            self._rate, self.text = _named(pattern, period, min, max, spike, seed)
            return
        if period is not None or min is not None or max is not None:
            raise UserError("period, min and max belong to a pattern: es.Load('wave', period=...).")
        if callable(pattern):
            step_s = seconds(resolution)
            if not step_s > 0:
                raise UserError(f"resolution={resolution!r} must be positive.")
            self._rate = Sampled(pattern, step_s)
            self._rate.rate(np.zeros(1))  # finds a function that cannot be called
            return
        if not 0 < pattern < float("inf"):
            raise UserError(
                f"the rate must be a positive number of records per second, not {pattern}."
            )
        self._rate = Steady(float(pattern))
        self.text = f"{pattern:.12g}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """From text: "500", "wave,10s,100,1000", "spike,10s,100,1000,5" or "random-walk,1s,1,9,42".

        Name, period (seconds, or with a unit, or "1000 items"), min and max, as in SPBench; last the
        per cent of a spike, or the seed of a walk.

        >>> es.Load.parse("binary,4,10,20").items(4)
        60.0
        """
        parts = [word.strip() for word in text.split(",")]
        try:
            if len(parts) == 1 and parts[0] not in PATTERNS:
                return cls(float(parts[0]))
        except ValueError:
            raise _unknown(parts[0]) from None
        name: Any = parts[0]
        if name not in PATTERNS:
            raise _unknown(name)
        if not 4 <= len(parts) <= 5:
            raise UserError(
                f"the load '{text}': write NAME,PERIOD,MIN,MAX, as in wave,10s,100,1000."
            )
        try:
            least, most = float(parts[2]), float(parts[3])
            period: str | float = parts[1] if parts[1][-1:].isalpha() else float(parts[1])
            last = float(parts[4]) if len(parts) == 5 else None
        except ValueError:
            raise UserError(
                f"the load '{text}': period, min and max must be numbers, as in wave,10s,100,1000."
            ) from None
        more: dict[str, Any] = {}
        if last is not None and name not in ("spike", "random-walk"):
            raise UserError(f"the load '{text}': only a spike and a random-walk take a fifth word.")
        if last is not None:
            more = {"spike": last} if name == "spike" else {"seed": int(last)}
        return cls(name, period=period, min=least, max=most, **more)

    @classmethod
    def trace(cls, path: str | os.PathLike[str], *, repeat: bool = False) -> Self:
        """From a .csv or .parquet with the columns `at_s` (from 0 up) and `rate`.

        Each row's rate holds until the next row. The last rate stays; with `repeat` the last row
        only marks where the trace begins again.
        """
        at_s, rates = _read_trace(Path(path), repeat)
        load = cls.__new__(cls)
        load.text = None
        held = rates[:-1] if len(rates) > 1 else rates
        if not repeat:
            at_s, held = np.append(at_s, at_s[-1] + 1.0), rates
        load._rate = Pieces(at_s, held, held, repeats=repeat)
        return load

    @classmethod
    def calibrated(cls, pattern: Pattern, run: Mapping[str, Any] | str | os.PathLike[str]) -> Self:
        """A load that suits a pipeline, from a run of it at full speed.

        `run` is `result.to_json()`, or a file written by `everstream run --json`. With throughput X
        and duration T: from 0.1 X to 1.1 X, in periods of T/3; T if it increases or decreases.
        """
        result = run if isinstance(run, Mapping) else _result_in(Path(run))
        throughput, lasted_s = result.get("records_per_s"), result.get("wall_s")
        if not throughput or not lasted_s:
            raise UserError(
                "to calibrate, give the result of a run that read records: its throughput and "
                "duration are needed."
            )
        if pattern not in PATTERNS:
            raise _unknown(pattern)
        period_s = lasted_s if pattern in ONCE else lasted_s / CALIBRATED_PERIODS
        return cls(
            pattern,
            period=float(period_s),
            min=CALIBRATED_MIN * throughput,
            max=CALIBRATED_MAX * throughput,
        )

    @overload
    def rate(self, at_s: float) -> float: ...
    @overload
    def rate(self, at_s: Floats) -> Floats: ...
    def rate(self, at_s: float | Floats) -> float | Floats:
        """Items per second at this time after the start; for a numpy array, at each."""
        return _like(at_s, self._rate.rate(np.atleast_1d(np.asarray(at_s, float))))

    @overload
    def items(self, at_s: float) -> float: ...
    @overload
    def items(self, at_s: Floats) -> Floats: ...
    def items(self, at_s: float | Floats) -> float | Floats:
        """How many items are due by this time: the integral of the rate."""
        return _like(at_s, self._rate.items(np.atleast_1d(np.asarray(at_s, float))))

    @overload
    def due_s(self, number: float, until_s: float = float("inf")) -> float: ...
    @overload
    def due_s(self, number: Floats, until_s: float = float("inf")) -> Floats: ...
    def due_s(self, number: float | Floats, until_s: float = float("inf")) -> float | Floats:
        """When item `number` is due, counted from 1; infinity if never, or only after `until_s`."""
        numbers = np.atleast_1d(np.asarray(number, float))
        return _like(number, self._rate.due_s(numbers, until_s))

    def pace(
        self,
        items: Iterable[T],
        *,
        catch_up: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[T]:
        """The items, each when it is due: puts a program that is no pipeline under this load.

        By default, an item that was asked for late moves all later ones back, as in SPBench. With
        `catch_up`, late items are given as soon as they are asked for, until the load is met again.
        The iteration ends with the last item that is ever due. Replace `clock` and `sleep` in tests.

        >>> for number in es.Load("wave", period="10ms", min=1000, max=2000).pace(range(3)):
        ...     print(number)
        0
        1
        2
        """
        start_s = clock()
        for number, item in enumerate(items, 1):
            due_s = start_s + self.due_s(float(number))
            if due_s == float("inf"):
                return
            wait_s = due_s - clock()
            if wait_s > 0:
                sleep(wait_s)
            elif not catch_up:
                start_s -= wait_s
            yield item

    def __repr__(self) -> str:
        return f"Load({self.text or type(self._rate).__name__.lower()})"


def load_of(given: "Load | float | str | Callable[[float], float]") -> Load:
    if isinstance(given, Load):
        return given
    return Load.parse(given) if isinstance(given, str) else Load(given)


def _like(given: float | Floats, values: Floats) -> float | Floats:
    return values if isinstance(given, np.ndarray) else float(values[0])


def _unknown(name: str) -> UserError:
    near = difflib.get_close_matches(str(name), PATTERNS, 1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return UserError(f"there is no load pattern '{name}'.{meant} There are {', '.join(PATTERNS)}.")


def _named(
    name: str,
    period: str | float | None,
    least: float | None,
    most: float | None,
    spike: float,
    seed: int,
) -> tuple[Rate, str]:
    if name not in PATTERNS:
        raise _unknown(name)
    if period is None or least is None or most is None:
        raise UserError(f"the load {name} needs period=, min= and max=.")
    by_item = isinstance(period, str) and period.strip().endswith(ITEMS)
    lasts_s = _items_in(period) if by_item else seconds(period)
    if not 0 < lasts_s < float("inf"):
        raise UserError(f"period={period!r} must be positive.")
    if not 0 <= least < float("inf"):
        raise UserError(f"min={least!r}: give 0 or more items per second.")
    if not least <= most < float("inf"):
        raise UserError(f"max={most!r} must not be below min={least!r}.")
    if most == 0 or (name == "spike" and least == spike == 0):
        raise UserError(
            "this load never gives anything: make max positive, and give a spike some width."
        )
    if not 0 <= spike <= 100:
        raise UserError(f"spike={spike!r} is a percentage of the period: give 0 to 100.")
    if by_item and least == 0:
        raise UserError(
            f"min={least!r}: a pattern that follows the items would stop for ever at 0: give more."
        )
    text = f"{name},{lasts_s:.12g}{' items' if by_item else ''},{least:.12g},{most:.12g}"
    if name == "spike":
        text += f",{spike:.12g}"
    elif name == "random-walk":
        text += f",{seed}"
    shape = _shape(name, lasts_s, least, most, spike / 100, seed)
    return ByItem(shape) if by_item else shape, text


def _items_in(period: Any) -> float:
    try:
        return float(period.strip().removesuffix(ITEMS))
    except ValueError:
        raise UserError(f"period={period!r}: write how many items, as in '1000 items'.") from None


def _shape(name: str, lasts_s: float, least: float, most: float, spike: float, seed: int) -> Rate:
    match name:
        case "wave":
            return Wave(lasts_s, least, most)
        case "binary":
            levels = [least, most]
            return Pieces([0.0, lasts_s / 2, lasts_s], levels, levels, repeats=True)
        case "increasing":
            return Pieces([0.0, lasts_s], [least], [most], repeats=False)
        case "decreasing":
            return Pieces([0.0, lasts_s], [most], [least], repeats=False)
        case "random-walk":
            return Walk(lasts_s, least, most, (most - least) / 10, seed)
        case _:
            if spike == 0:
                return Pieces([0.0, lasts_s], [least], [least], repeats=True)
            times_s = [0.0, lasts_s * (1 - spike), lasts_s]
            return Pieces(times_s, [least, least], [least, most], repeats=True)


def _result_in(path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"no result of a run in {path} ({error}): write one with everstream run PIPELINE "
            "--json FILE, at full speed."
        ) from None
    return result


def _read_trace(path: Path, repeat: bool) -> tuple[Floats, Floats]:
    try:
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
        at_s = frame["at_s"].cast(pl.Float64).to_numpy()
        rates = frame["rate"].cast(pl.Float64).to_numpy()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"no trace in {path} ({error}): give a .csv or .parquet with the columns at_s and rate."
        ) from None
    rising = len(at_s) > 0 and at_s[0] == 0 and bool(np.all(np.diff(at_s) > 0))
    if not rising or (repeat and len(at_s) < 2):
        raise UserError(f"the trace {path}: at_s must begin with 0 and increase from row to row.")
    if not (np.all(rates >= 0) and np.all(np.isfinite(rates)) and rates.any()):
        raise UserError(f"the trace {path}: rates must be 0 or more, and not all of them 0.")
    if repeat and not rates[:-1].any():
        raise UserError(
            f"the trace {path}: with repeat the last row only marks the end, and all others are 0."
        )
    return at_s, rates
