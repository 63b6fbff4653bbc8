"""What a paper shows: a table or a figure with numbers, what it says, and the words for a difference.

An exhibit names the experiment that regenerates it. Its *statements* are what the paper says about
it; each takes one number from our measurements and compares it with the printed one. A statement
comes to one of three: reproduced; better, because; not reproducible, because. What follows "because"
is a fact about how something is built or counted, or is worked out from the measurements; where
neither explains a difference, the sentence has "not explained".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Any, Literal

from everstream_lab.apps.cycle.estimates import Estimate, estimate

Place = float | str
"""Where a value lies on a curve: a number across, or the name of a bar."""
Point = tuple[str, Place, float]
"""A curve, a place on it, and the value there."""
Quantities = Mapping[str, Sequence[Point]]
"""By quantity, such as `throughput`: what one step of an experiment measured."""


class Found:
    """What an experiment measured, by quantity, curve and place, repetition by repetition."""

    def __init__(self, repetitions: Sequence[Quantities]) -> None:
        self._repetitions = repetitions
        self._values: dict[str, dict[str, dict[Place, list[float]]]] = {}
        for repetition in repetitions:
            for quantity, points in repetition.items():
                curves = self._values.setdefault(quantity, {})
                for curve, at, value in points:
                    curves.setdefault(curve, {}).setdefault(at, []).append(value)

    @staticmethod
    def together(some: Sequence["Found"]) -> "Found":
        """What several experiments measured: the first repetition of each, the second, and so on."""
        joined: list[dict[str, list[Point]]] = []
        for found in some:
            for number, quantities in enumerate(found._repetitions):
                if number == len(joined):
                    joined.append({})
                for quantity, points in quantities.items():
                    joined[number].setdefault(quantity, []).extend(points)
        return Found(joined)

    def __bool__(self) -> bool:
        return bool(self._values)

    def apart(self) -> list["Found"]:
        """Each repetition alone."""
        return [Found([one]) for one in self._repetitions]

    def curves(self, quantity: str) -> list[str]:
        return list(self._values.get(quantity, {}))

    def curve(self, quantity: str, curve: str) -> list[tuple[Place, Estimate]]:
        """Its places in order (numbers ascending, names as they came), each with its mean."""
        values = self._values.get(quantity, {}).get(curve, {})
        numbers: list[Place] = sorted(at for at in values if not isinstance(at, str))
        names: list[Place] = [at for at in values if isinstance(at, str)]
        return [(at, estimate(values[at])) for at in [*numbers, *names]]

    def value(self, quantity: str, curve: str, at: Place) -> float | None:
        values = self._values.get(quantity, {}).get(curve, {}).get(at)
        return None if not values else fmean(values)

    def at(self, quantity: str, curve: str, at: Place) -> Estimate | None:
        values = self._values.get(quantity, {}).get(curve, {}).get(at)
        return None if not values else estimate(values)

    def values(self, quantity: str, curve: str) -> list[float]:
        """The means along a curve."""
        return [one.mean for _, one in self.curve(quantity, curve)]

    def best(self, quantity: str, curve: str) -> float | None:
        return max(self.values(quantity, curve), default=None)

    def where_best(self, quantity: str, curve: str) -> Place | None:
        """The place of the largest value."""
        points = self.curve(quantity, curve)
        return max(points, key=lambda point: point[1].mean)[0] if points else None

    def with_derived(self, derive: "Callable[[Found], Quantities]") -> "Found":
        """The same, and what each repetition comes to."""
        return Found([{**own, **derive(Found([own]))} for own in self._repetitions])

    def gain(self, quantity: str, curve: str) -> float | None:
        """Its last value as a multiple of its first."""
        return ratio((values := self.values(quantity, curve))[-1:], values[:1])


def ratio(above: Any, below: Any) -> float | None:
    """One by the other; None if either was not measured or there is nothing to divide by.

    >>> ratio(3.0, 2.0), ratio(None, 2.0), ratio([4.0], [2.0])
    (1.5, None, 2.0)
    """
    top, under = (one[0] if isinstance(one, list) and one else one for one in (above, below))
    if not isinstance(top, int | float) or not isinstance(under, int | float) or not under:
        return None
    return float(top / under)


class Judgement(StrEnum):
    REPRODUCED = "reproduced"
    BETTER = "better"
    NOT = "not reproducible"


Goal = Literal["near", "at least", "at most"]
Reason = str | Callable[[Found], str | None]
"""A fact about how something is built or counted, or what the measurements show; None if nothing."""


def unexplained(found: Found) -> str | None:
    """Nothing that was measured explains it."""
    return None


def reason(one: Reason, found: Found) -> str:
    """The end of "better" or "not reproducible" in a sentence."""
    why = one if isinstance(one, str) else one(found)
    return f"because {why}" if why else "not explained"


def first_of(*some: Callable[[Found], str | None]) -> Callable[[Found], str | None]:
    """The first of these reasons for which the measurements speak."""
    return lambda found: next((why for one in some if (why := one(found))), None)


@dataclass(frozen=True)
class Statement:
    """One thing that a paper says, with a number."""

    says: str
    """What the number is, as the subject of a sentence."""
    printed: float | None
    """The paper's number; None where it only says which is larger."""
    take: Callable[[Found], float | None]
    """Ours."""
    goal: Goal = "near"
    bound: float | None = None
    """What ours must reach; default: the printed number."""
    tolerance: float = 0.2
    """How far ours may be from the printed number, as a share of it."""
    because: Reason = ""
    """Why ours is better, where it is by more than the tolerance; empty: it is called reproduced."""
    otherwise: Reason = unexplained
    """Why ours differs, where it does."""
    unit: str = ""
    in_words: str = ""
    """What the paper says instead of a number; reaching the bound is then better than that."""
    least: float | None = None
    """What cannot be less: a smaller number says how much the runs differ by chance."""

    def judge(self, found: Found) -> "Judged":
        values = [
            value
            for one in found.apart()
            if (value := self.take(one)) is not None and math.isfinite(value)
        ]
        if not values:
            return Judged(self, None, None)
        ours = estimate(values)
        judgement = self._judgement(ours.mean)
        if judgement is Judgement.BETTER:
            # What the interval does not rule out is not claimed.
            ends = [end for end in (ours.low, ours.high) if end is not None]
            if any(self._judgement(end) is Judgement.NOT for end in ends):
                judgement = Judgement.REPRODUCED
        return Judged(self, ours, judgement, self._why(ours.mean, judgement, found))

    def _why(self, ours: float, judgement: Judgement, found: Found) -> str:
        if judgement is Judgement.BETTER:
            return reason(self.because, found)
        if judgement is Judgement.REPRODUCED:
            return ""
        if self.least is not None and ours < self.least:
            return "because the runs that are compared differ by more than what is looked for"
        return reason(self.otherwise, found)

    def _judgement(self, ours: float) -> Judgement:
        bound = self.printed if self.bound is None else self.bound
        assert bound is not None, f"{self.says}: neither a printed number nor a bound"
        if self.least is not None and ours < self.least:
            return Judgement.NOT
        slack = self.tolerance * abs(bound)
        if self.goal == "near":
            return Judgement.REPRODUCED if abs(ours - bound) <= slack else Judgement.NOT
        ahead = ours - bound if self.goal == "at least" else bound - ours
        if self.because and self.printed is not None and ahead > slack:
            return Judgement.BETTER
        if self.in_words and ahead >= 0:
            return Judgement.BETTER
        return Judgement.REPRODUCED if ahead >= 0 else Judgement.NOT


@dataclass(frozen=True)
class Judged:
    """A statement with our number."""

    statement: Statement
    ours: Estimate | None
    judgement: Judgement | None
    """None if nothing was measured."""
    why: str = ""
    """Of a difference: "because …", or that it is not explained."""

    @property
    def sentence(self) -> str:
        one = self.statement
        theirs = f", {one.in_words} in the paper" if one.in_words else ""
        if one.printed is not None:
            theirs = f", {shown(one.printed)}{one.unit} in the paper"
        if self.ours is None or self.judgement is None:
            return f"not measured: {one.says}{theirs}."
        half = ""
        if self.ours.low is not None:
            half = f" ± {shown(self.ours.mean - self.ours.low)}"
        subject = f"{one.says} is {shown(self.ours.mean)}{half}{one.unit} here{theirs}"
        why = f", {self.why}" if self.why else ""
        return f"{self.judgement.value}{why}: {subject}."


def shown(value: float) -> str:
    """Three digits that mean something, and no exponents where a reader wants none.

    >>> shown(1548.19), shown(0.005025), shown(1.0), shown(247084.18), shown(0.0)
    ('1,548', '0.00503', '1', '247,084', '0')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Panel:
    """A chart of the kind that the paper has: of one quantity, ours and theirs."""

    quantity: str
    kind: Literal["lines", "bars"]
    across: str
    up: str
    log: bool = False


@dataclass(frozen=True)
class Exhibit:
    """A table or a figure of a paper."""

    paper: str
    label: str
    """As the paper has it: `figure 5.4`, `table 3`."""
    title: str
    experiments: tuple[str, ...]
    """What regenerates it."""
    scale: str
    """What is smaller, shorter or different here."""
    statements: tuple[Statement, ...] = ()
    panels: tuple[Panel, ...] = ()
    printed: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    """By quantity: the values that the paper prints."""
    deviations: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    """By quantity: the standard deviations that it prints with them."""
    curves: str = ""
    """How the names of its curves begin, where its experiments have others, too."""
    notes: tuple[str, ...] = ()
    """Where the paper contradicts itself, and which reading the code follows."""
    derive: Callable[[Found], Quantities] | None = None
    """What its table or chart shows, worked out from what its experiments measured."""

    def __post_init__(self) -> None:
        assert self.experiments, f"{self.name}: nothing regenerates it"

    def found(self, measured: Found) -> Found:
        """What was measured for it, with what is derived."""
        return measured if self.derive is None else measured.with_derived(self.derive)

    @property
    def name(self) -> str:
        """One that no other exhibit has."""
        return f"{self.paper} {self.label}"
