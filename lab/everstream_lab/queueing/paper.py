"""The CCRR study: its four cases, what it printed, and how to read what it leaves open.

Every number in the study's text is here once, next to the function that
takes our number from the simulation. Its figures 6 to 9 are pictures; where only they hold a
value there is nothing to compare with, and we draw ours.

How we read it, where the text is silent or at odds with itself:

- One entity per arrival is given as 1250 tuples/s, but a gap of 3.2 ms gives 312.5/s. We
  take four sources, which gives both.
- The interval counts from the end of a commit to the next checkpoint. That gives a mean loss
  of 133 k in case 2, the study's number.
- Failures are "a Poisson distribution of mean M". We take ARENA's POIS(M) for the gap between
  two failures of a node (a whole number of seconds near M), not an exponential gap. It is the
  reading that gives the study's 10.1 % loss and 530 k unprocessed tuples in case 3.
- The two nodes of case 4 have a clock each and are recovered one after the other. A failure
  that would strike during a recovery does not happen, and a fresh gap starts.
- What is inside the operators when a checkpoint starts drains; only arrivals are lost.
- A tuple that passes by several failed operators is unprocessed once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from everstream.planning import analytic
from everstream_lab.queueing.model import (
    Behaviour,
    Checkpoints,
    Distribution,
    FailureClock,
    FailureClocks,
    Failures,
    Model,
    RecoveryOrder,
    SourceModel,
    exponential,
    line,
    normal,
    poisson,
)

RATES_PER_S = (1250, 2500, 3750, 5000, 6250, 7500, 8750, 10000)
WINDOW_TUPLES = 10_000_000
OPERATORS = ("operator 1", "operator 2", "operator 3", "operator 4")
GAP = normal(3.2e-3, 5e-5)
SERVICE = normal(8e-5, 1e-5)
SOURCES = 4

Intervals = Literal["used", "equation"]


@dataclass(frozen=True)
class Case:
    """One of the study's cases; `interval_s` is what it used, not what its equation gives."""

    number: int
    title: str
    interval_s: float | None = None
    commit_s: float = 1.0
    mtbf_s: float = 600.0
    recovery_s: float = 60.0
    failing: tuple[str, ...] = ()

    @property
    def equation_interval_s(self) -> float | None:
        """What equation 4 gives for the same commit time and time between failures."""
        if self.interval_s is None:
            return None
        return analytic.ccrr_interval_s(self.commit_s, self.mtbf_s)


CASES = (
    Case(1, "no checkpoints, no failures"),
    Case(2, "checkpoints, no failures", 74.0),
    Case(3, "one node fails", 74.0, failing=("operator 1",)),
    Case(4, "two nodes fail", 45.0, 1.0, 300.0, 120.0, ("operator 1", "operator 3")),
)


@dataclass(frozen=True)
class Reading:
    """One way to read what the text leaves open about failures."""

    gap: Literal["poisson", "exponential"] = "poisson"
    clock: FailureClock = "between_failures"
    recovery: RecoveryOrder = "one_by_one"
    clocks: FailureClocks = "own"

    def between(self, mtbf_s: float) -> Distribution:
        return poisson(mtbf_s) if self.gap == "poisson" else exponential(mtbf_s)


READING = Reading()
READINGS = tuple(
    Reading(gap, clock, recovery, clocks)
    for clocks in ("own", "shared")
    for gap in ("poisson", "exponential")
    for clock in ("between_failures", "up_time")
    for recovery in ("one_by_one", "together")
)  # fmt: skip


def case_model(
    case: Case,
    rate_per_s: int,
    tuples: int = WINDOW_TUPLES,
    *,
    intervals: Intervals = "used",
    behaviour: Behaviour = "discard",
    reading: Reading = READING,
    coarse: int = 1,
) -> Model:
    """The model of one case at one arrival rate.

    `coarse` lets one simulated tuple stand for that many: gaps and service are longer and the
    window is shorter by this factor, so load, checkpoints, failures and times are the same and
    the counts are to be multiplied. Only waiting times in the queues mean nothing then.
    """
    entities, rest = divmod(rate_per_s, 1250)
    if rest or entities < 1:
        raise ValueError(f"the study's rates are multiples of 1250 tuples/s, not {rate_per_s}")
    gap = normal(GAP.first * coarse, GAP.second * coarse)
    checkpoints = failures = None
    if case.interval_s is not None:
        interval_s = case.interval_s if intervals == "used" else case.equation_interval_s
        checkpoints = Checkpoints(interval_s or case.interval_s, case.commit_s)
    if case.failing:
        failures = Failures(
            case.failing,
            reading.between(case.mtbf_s),
            case.recovery_s,
            clock=reading.clock,
            recovery=reading.recovery,
            clocks=reading.clocks,
        )
    return Model(
        operators=line(OPERATORS, normal(SERVICE.first * coarse, SERVICE.second * coarse), cpus=3),
        sources=tuple(
            # ARENA creates the first entity at 0. Coarse gaps are long, and the window would end
            # one gap early, so coarse sources start one after the other.
            SourceModel(OPERATORS[0], gap, entities, gap.first * (i + 1) / SOURCES * (coarse > 1))
            for i in range(SOURCES)
        ),
        window_tuples=max(1, tuples // coarse),
        checkpoints=checkpoints,
        failures=failures,
        behaviour=behaviour,
        in_flight_limit=max(16, 256 // coarse),
        latency_target_s=1.0,
    )


def busiest_model(rate_per_s: int, tuples: int) -> Model:
    """The longest waits the text could mean: one CPU per node, all sources always in step."""
    return Model(
        operators=line(OPERATORS, SERVICE, cpus=1),
        sources=(SourceModel(OPERATORS[0], GAP, SOURCES * rate_per_s // 1250),),
        window_tuples=tuples,
    )


@dataclass(frozen=True)
class Point:
    """The mean of the replications of one case at one rate."""

    window_s: float
    lost: float
    unprocessed: float
    mean_wait_s: tuple[float, ...] = ()
    window_half_width_s: float = 0.0
    lost_half_width: float = 0.0


Grid = Mapping[tuple[int, int], Point]
"""By case number and rate."""


@dataclass(frozen=True)
class Claim:
    """A number the study prints, and how to get ours from the grid."""

    case: int
    what: str
    paper: float
    measure: Callable[[Grid], float]
    tolerance: float | None
    note: str = ""
    waits: bool = False
    """Whether it is about waiting times, which only a grid of whole tuples has."""


def _mean(grid: Grid, case: int, field: str) -> float:
    return statistics.fmean(getattr(grid[case, rate], field) for rate in _rates(grid))


def _rates(grid: Grid) -> list[int]:
    return sorted({rate for _, rate in grid})


def _worst_ratio(grid: Grid, case: int, against: int) -> float:
    return max(grid[case, r].window_s / grid[against, r].window_s for r in _rates(grid))


def claims(tuples: int = WINDOW_TUPLES) -> tuple[Claim, ...]:
    """What can be compared. Increases are compared as ratios: +2 % is 1.02."""
    size = tuples / WINDOW_TUPLES
    loss, skipped, ratio = "mean tuples lost", "mean tuples unprocessed", "largest latency against"
    return (
        Claim(1, "latency at 1250/s, s", 8000 * size, lambda g: g[1, 1250].window_s, 0.02,
              "window over arrival rate; the study gives no number in its text"),
        Claim(2, loss, 133_000 * size, lambda g: _mean(g, 2, "lost"), 0.02),
        Claim(2, f"{ratio} case 1", 1.02, lambda g: _worst_ratio(g, 2, 1), 0.02),
        Claim(3, loss, 1_010_000 * size, lambda g: _mean(g, 3, "lost"), 0.02,
              "from '10.1 % of the window'"),
        Claim(3, loss, 1_100_000 * size, lambda g: _mean(g, 3, "lost"), 0.12,
              "from '1.1 million', which is 11 %"),
        Claim(3, f"{ratio} case 2", 1.10, lambda g: _worst_ratio(g, 3, 2), 0.02),
        Claim(3, f"{ratio} case 1", 1.12, lambda g: _worst_ratio(g, 3, 1), 0.02,
              "from 'throughput decreases up to 12 %'"),
        Claim(3, skipped, 530_000 * size, lambda g: _mean(g, 3, "unprocessed"), 0.12),
        Claim(4, loss, 9_500_000 * size, lambda g: _mean(g, 4, "lost"), 0.12),
        Claim(4, f"{ratio} case 1", 2.20, lambda g: _worst_ratio(g, 4, 1), 0.12),
        Claim(4, f"{ratio} case 1", 2.09, lambda g: _worst_ratio(g, 4, 1), 0.12,
              "from 'throughput decreases up to 109 %'"),
        Claim(4, skipped, 1_200_000 * size, lambda g: _mean(g, 4, "unprocessed"), None,
              "the text also has 10.2 %, which would be 1.02 million; no reading gives both this and the loss"),
        *(_growth_claim(case, operator, percent)
          for case, growths in WAIT_GROWTH_PERCENT.items() for operator, percent in enumerate(growths)),
    )  # fmt: skip


WAIT_GROWTH_PERCENT = {3: (12, 121, 8, 29), 4: (27, 125, 14, 8)}
"""By case: how much longer tuples wait than without failures, at most, operator by operator."""


def _growth_claim(case: int, operator: int, percent: float) -> Claim:
    """The text's growth as a ratio; `note` has what the study's own tables come to."""
    tables = max(
        after / before
        for rate in RATES_PER_S
        if (after := paper_wait_s(case, rate, operator))
        and (before := paper_wait_s(2, rate, operator))
    )
    return Claim(
        case,
        f"largest wait of {OPERATORS[operator]} against case 2",
        1 + percent / 100,
        lambda grid: _worst_wait_ratio(grid, case, operator),
        0.12,
        f"the study contradicts itself, for its tables give {tables:.2f}, and only the operator next "
        "to one that resumes has a queue worth the name",
        waits=True,
    )


def _worst_wait_ratio(grid: Grid, case: int, operator: int) -> float:
    """Over the rates at which the study prints both waits."""
    return max(
        grid[case, rate].mean_wait_s[operator] / grid[2, rate].mean_wait_s[operator]
        for rate in _rates(grid)
        if paper_wait_s(case, rate, operator) and paper_wait_s(2, rate, operator)
    )


@dataclass(frozen=True)
class Compared:
    """A claim with our number beside it."""

    claim: Claim
    measured: float

    @property
    def difference(self) -> float:
        return self.measured / self.claim.paper - 1

    @property
    def within(self) -> bool | None:
        """None where no tolerance applies."""
        if self.claim.tolerance is None:
            return None
        return abs(self.difference) <= self.claim.tolerance


def compare(grid: Grid, tuples: int = WINDOW_TUPLES, waits: bool = False) -> list[Compared]:
    """All claims; those about waiting times only of a grid of whole tuples, which has them."""
    return [
        Compared(claim, claim.measure(grid)) for claim in claims(tuples) if waits or not claim.waits
    ]


_DASH = 0.0
"""The study prints a dash for a wait too short for ARENA to show."""

# Tables 2 to 5: mean wait in microseconds by rate and operator.
_WAITS_US: Mapping[int, Sequence[Sequence[float]]] = {
    1: ((288, 0, 0, 0), (180, 72, 108, 108), (468, 288, 180, 108), (612, 288, 324, 252),
        (828, 288, 360, 324), (1080, 324, 396, 396), (1368, 324, 468, 432), (1692, 324, 468, 432)),
    2: ((288, 0, 0, 0), (396, 108, 108, 108), (468, 288, 144, 108), (612, 288, 324, 180),
        (828, 288, 360, 360), (1080, 324, 432, 360), (1368, 324, 468, 432), (1692, 324, 468, 432)),
    3: ((288, 288, 0, 0), (396, 360, 108, 108), (504, 396, 180, 108), (612, 468, 360, 252),
        (900, 576, 396, 360), (1152, 684, 396, 360), (1548, 756, 468, 432), (1908, 828, 504, 432)),
    4: ((288, 288, 0, 0), (396, 324, 108, 108), (540, 396, 144, 108), (684, 468, 360, 360),
        (1008, 576, 396, 360), (1296, 612, 468, 396), (1548, 720, 576, 432), (2016, 864, 540, 468)),
}  # fmt: skip


def paper_wait_s(case: int, rate_per_s: int, operator: int) -> float | None:
    """Tables 2 to 5; None for a dash."""
    value = _WAITS_US[case][RATES_PER_S.index(rate_per_s)][operator]
    return None if value == _DASH else value * 1e-6


CONTRADICTIONS = (
    "Equation 4 gives 35.0 s for commit 1 s and M = 600 s, and 24.8 s for M = 300 s; the study "
    "reports and uses 74 s and 45 s. It also leaves out the final '- commit' of Daly's formula.",
    "Section 5 names a commit time of 74 s; with it the system would stand still half the time. "
    "It must be the interval.",
    "One entity per 3.2 ms is 312.5 tuples/s, not 1250.",
    "The loss of case 3 is '1.1 million, 10.1 %' of a window of 10 million.",
    "The unprocessed tuples of case 4 are '1.2 million, 10.2 %' of the same window.",
    "Throughput cannot fall by 109 %; a latency of 2.09 times is a fall of 52 %.",
    "The waits of tables 2 to 5 are multiples of 36 us, which is 1e-8 hours: the last digit "
    "ARENA prints. And they are too long for the model: three CPUs at 27 % load, with all 32 "
    "tuples of 3.2 ms at once, give 0.39 ms on average, a single CPU 1.24 ms; the study has 1.69 ms.",
    "Table 2 has operator 1 waiting less at 2500/s (180 us) than at 1250/s (288 us).",
)
