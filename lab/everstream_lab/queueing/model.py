"""The input of a planning simulation: distributions, operators, sources, checkpoints, failures.

Everything here is plain frozen data with units in the names. `simulation` turns a `Model` into
arrays for the compiled kernel; `paper` builds the models of the CCRR study.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from everstream.connectors.generate.load import Load
from everstream.planning.units import parse_duration_s

Behaviour = Literal["discard", "backlog"]
FailureClock = Literal["between_failures", "up_time"]
FailureClocks = Literal["own", "shared"]
RecoveryOrder = Literal["one_by_one", "together"]
DistributionKind = Literal[
    "constant", "normal", "exponential", "uniform", "lognormal", "gamma", "poisson"
]

EXIT = "exit"
LOAD_MEAN_S = 3600.0


class ModelError(ValueError):
    """The model cannot be simulated as written; the message says what to change."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of durations in seconds. Build one with the functions below."""

    kind: DistributionKind
    first: float
    second: float = 0.0

    @property
    def mean_s(self) -> float:
        if self.kind == "uniform":
            return (self.first + self.second) / 2
        if self.kind == "lognormal":
            return math.exp(self.first + self.second**2 / 2)
        if self.kind == "gamma":
            return self.first * self.second
        return self.first

    @property
    def variance_s2(self) -> float:
        if self.kind == "normal":
            return self.second**2
        if self.kind == "exponential":
            return self.first**2
        if self.kind == "uniform":
            return (self.second - self.first) ** 2 / 12
        if self.kind == "lognormal":
            return (math.exp(self.second**2) - 1) * self.mean_s**2
        if self.kind == "gamma":
            return self.first * self.second**2
        if self.kind == "poisson":
            return self.first
        return 0.0


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ModelError(f"{name} must be a positive number of seconds, not {value!r}")
    return float(value)


def constant(value_s: float) -> Distribution:
    return Distribution("constant", _positive("value_s", value_s))


def normal(mean_s: float, deviation_s: float) -> Distribution:
    """Normal, with draws below zero taken as zero (a duration cannot be negative)."""
    if deviation_s < 0:
        raise ModelError(f"deviation_s must not be negative, not {deviation_s!r}")
    return Distribution("normal", _positive("mean_s", mean_s), float(deviation_s))


def exponential(mean_s: float) -> Distribution:
    return Distribution("exponential", _positive("mean_s", mean_s))


def uniform(low_s: float, high_s: float) -> Distribution:
    if not 0 <= low_s < high_s:
        raise ModelError(f"uniform needs 0 <= low_s < high_s, not {low_s!r} and {high_s!r}")
    return Distribution("uniform", float(low_s), float(high_s))


def lognormal(mean_s: float, deviation_s: float) -> Distribution:
    """Log-normal with the given mean and deviation of the duration itself, not of its logarithm."""
    log_variance = math.log(1 + (deviation_s / _positive("mean_s", mean_s)) ** 2)
    return Distribution("lognormal", math.log(mean_s) - log_variance / 2, math.sqrt(log_variance))


def erlang(mean_s: float, stages: int) -> Distribution:
    if stages < 1:
        raise ModelError(f"erlang needs at least one stage, not {stages}")
    return Distribution("gamma", float(stages), _positive("mean_s", mean_s) / stages)


def poisson(mean_s: float) -> Distribution:
    """A Poisson-distributed whole number of seconds, ARENA's `POIS(mean)`: it varies little."""
    return Distribution("poisson", _positive("mean_s", mean_s))


def parse_distribution(text: str) -> Distribution:
    """Read `normal:80us,10us`, `exponential:3ms`, `constant:1ms`, `uniform:1ms,2ms`, `erlang:1ms,4`.

    >>> parse_distribution("normal:2s,1s")
    Distribution(kind='normal', first=2.0, second=1.0)
    """
    name, _, rest = text.partition(":")
    parts = [part.strip() for part in rest.split(",") if part.strip()]
    two = {"normal": normal, "uniform": uniform, "lognormal": lognormal}
    one = {"constant": constant, "exponential": exponential, "poisson": poisson}
    if name in one and len(parts) == 1:
        return one[name](parse_duration_s(parts[0]))
    if name in two and len(parts) == 2:
        return two[name](parse_duration_s(parts[0]), parse_duration_s(parts[1]))
    if name == "erlang" and len(parts) == 2 and parts[1].isdigit():
        return erlang(parse_duration_s(parts[0]), int(parts[1]))
    raise ModelError(
        f"cannot read the distribution {text!r}: write it like normal:80us,10us, "
        "exponential:3ms, constant:1ms, uniform:1ms,2ms, lognormal:1ms,0.5ms, erlang:1ms,4 "
        "or poisson:600s"
    )


@dataclass(frozen=True)
class OperatorModel:
    """One FIFO queue with identical CPUs. `next` says where tuples go: names with probabilities.

    What the probabilities leave open, or the name `exit`, leaves the system. An empty `next`
    means everything leaves.
    """

    name: str
    service: Distribution
    cpus: int = 3
    next: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class SourceModel:
    """Delivers `entities` tuples at once to operator `to`, again and again after `gap`.

    With a load instead of a gap it delivers when the load's items are due.
    """

    to: str
    gap: Distribution | None = None
    entities: int = 1
    first_s: float = 0.0
    load: Load | None = None

    @property
    def rate_per_s(self) -> float:
        """On average; of a load, over its first hour."""
        if self.load is not None:
            return self.entities * self.load.items(LOAD_MEAN_S) / LOAD_MEAN_S
        assert self.gap is not None
        return self.entities / self.gap.mean_s

    def due_s(self, count: int) -> npt.NDArray[np.float64]:
        """When a source that follows a load delivers for the first `count` times."""
        assert self.load is not None
        return self.first_s + self.load.due_s(np.arange(1.0, count + 1))


@dataclass(frozen=True)
class Checkpoints:
    """Every `interval_s` of processing, input stops for `commit_s`.

    `upload_s` is the time after that, with processing resumed, until the checkpoint is stable. Only
    the `backlog` behaviour uses it, since only there a rollback needs a stable checkpoint.
    """

    interval_s: float
    commit_s: float
    upload_s: float = 0.0


@dataclass(frozen=True)
class Failures:
    """Which operators fail, how often, and what a recovery takes.

    `between` counts from one failure of a node to its next (`between_failures`) or from its
    repair to its next failure (`up_time`). A recovery restarts every node, so a failure that
    comes due during one does not happen and a fresh gap starts at its end. `detection_s` is
    used by `backlog` only: `discard` finds a failure at the next checkpoint, as CCRR does.
    """

    operators: tuple[str, ...]
    between: Distribution
    recovery_s: float
    detection_s: float = 0.0
    clock: FailureClock = "between_failures"
    clocks: FailureClocks = "own"
    """Each operator fails on its own, or all of them at the same moment."""
    recovery: RecoveryOrder = "one_by_one"
    at_s: tuple[float, ...] = ()
    """Failures at fixed times (of the first operator named) instead of random ones."""


@dataclass(frozen=True)
class Model:
    """A whole system and the window of tuples to push through it."""

    operators: tuple[OperatorModel, ...]
    sources: tuple[SourceModel, ...]
    window_tuples: int = 0
    """The number of tuples in a window, which ends when the last of them has left; 0: `window_s` counts."""
    checkpoints: Checkpoints | None = None
    failures: Failures | None = None
    behaviour: Behaviour = "discard"
    in_flight_limit: int = 256
    """`backlog` only: how many tuples may be inside the operators; the rest wait at the source."""
    latency_target_s: float = math.inf
    curve_step_s: float = 1.0
    """Width of one step of the latency curve."""
    window_s: float | None = None
    """A window of time: what arrives in it is the window, which is over when all of it has left."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def rate_per_s(self) -> float:
        return sum(source.rate_per_s for source in self.sources)

    @property
    def expected_tuples(self) -> int:
        """How many tuples the window has; of a window of time, about how many."""
        if self.window_s is None:
            return self.window_tuples
        return max(1, round(self.window_s * self.rate_per_s))

    @property
    def capacity_per_s(self) -> float:
        """The highest total input rate that every operator can keep up with."""
        return min(
            operator.cpus / (operator.service.mean_s * visits)
            for operator, visits in zip(self.operators, self.visits(), strict=True)
            if visits > 0
        )

    def visits(self) -> list[float]:
        """How often an average tuple passes each operator (solves the traffic equations)."""
        index = {operator.name: i for i, operator in enumerate(self.operators)}
        size = len(self.operators)
        routing = np.zeros((size, size))
        entry = np.zeros(size)
        for i, operator in enumerate(self.operators):
            for name, probability in operator.next:
                if name != EXIT:
                    routing[i, index[name]] += probability
        for source in self.sources:
            entry[index[source.to]] += source.rate_per_s
        visits = np.linalg.solve(np.eye(size) - routing.T, entry / entry.sum())
        return [float(value) for value in visits]

    def with_behaviour(self, behaviour: Behaviour) -> Model:
        return replace(self, behaviour=behaviour)


def check(model: Model) -> None:
    """Refuse a model that would hang or mean nothing, and say what to change."""
    names = [operator.name for operator in model.operators]
    if not names or not model.sources:
        raise ModelError("a model needs at least one operator and one source")
    if len(set(names)) != len(names) or EXIT in names:
        raise ModelError(f"operator names must differ and not be 'exit': {names}")
    if model.window_s is None and model.window_tuples < 1:
        raise ModelError(f"window_tuples must be at least 1, not {model.window_tuples}")
    if model.window_s is not None and (model.window_tuples or not 0 < model.window_s < math.inf):
        raise ModelError("give a window of tuples or of time above 0: window_tuples or window_s")
    for operator in model.operators:
        if operator.cpus < 1:
            raise ModelError(f"operator {operator.name!r} needs at least one CPU")
        for name, probability in operator.next:
            if name != EXIT and name not in names:
                raise ModelError(f"operator {operator.name!r} sends to unknown {name!r}")
            if not 0 <= probability <= 1:
                raise ModelError(f"probability {probability} at {operator.name!r} is not in 0..1")
        if sum(probability for _, probability in operator.next) > 1 + 1e-9:
            raise ModelError(f"the probabilities at operator {operator.name!r} add up to over 1")
    for source in model.sources:
        if source.to not in names:
            raise ModelError(f"a source sends to unknown operator {source.to!r}")
        if source.entities < 1:
            raise ModelError("a source delivers at least one entity per arrival")
        if (source.gap is None) == (source.load is None):
            raise ModelError("a source has a gap between arrivals or a load: give one of them")
        if source.load is not None and not source.rate_per_s > 0:
            raise ModelError(f"{source.load} gives nothing in the first hour")
        wanted = math.ceil(model.window_tuples / source.entities)
        if source.load is not None and math.isinf(source.load.due_s(float(wanted))):
            raise ModelError(
                f"{source.load} ends before it has given the {model.window_tuples:,} tuples of the "
                "window: give a window of time, or a load that does not end"
            )
    if model.checkpoints is not None:
        if model.checkpoints.interval_s <= 0:
            raise ModelError("the checkpoint interval must be above zero")
        if model.checkpoints.commit_s < 0 or model.checkpoints.upload_s < 0:
            raise ModelError("commit and upload times must not be negative")
    if model.failures is not None:
        unknown = set(model.failures.operators) - set(names)
        if unknown or not model.failures.operators:
            raise ModelError(f"failing operators must be among {names}, not {sorted(unknown)}")
        if model.failures.clocks == "shared" and model.failures.at_s:
            raise ModelError("failures at fixed times strike the first operator: no shared clock")
        if model.checkpoints is None and model.behaviour == "discard":
            raise ModelError(
                "with 'discard' a failure is only found at a checkpoint: add checkpoints"
            )
    if model.behaviour == "backlog" and model.in_flight_limit < 1:
        raise ModelError("in_flight_limit must be at least 1")
    if model.behaviour == "backlog" and model.rate_per_s >= model.capacity_per_s:
        raise ModelError(
            f"tuples arrive at {model.rate_per_s:.0f}/s but the slowest operator can do "
            f"{model.capacity_per_s:.0f}/s: a backlog would grow for ever; add CPUs"
        )


def line(names: tuple[str, ...], service: Distribution, cpus: int = 3) -> tuple[OperatorModel, ...]:
    """Operators in a row, each sending everything to the next."""
    following: list[tuple[tuple[str, float], ...]] = [((name, 1.0),) for name in names[1:]]
    following.append(())
    return tuple(
        OperatorModel(name, service, cpus, after)
        for name, after in zip(names, following, strict=True)
    )


@dataclass(frozen=True)
class InputPause:
    """One stretch in which input stood still: a checkpoint, or a failure with its recovery."""

    kind: Literal["checkpoint", "recovery"]
    start_s: float
    end_s: float
    caught_up_s: float | None
    """When the source had no waiting tuples again; None for `discard` or if it never did."""
    replayed: int
    backlog: int
    """Tuples waiting at the source, including replayed ones, when processing resumed."""

    @property
    def catch_up_s(self) -> float | None:
        """From the moment processing resumed until the backlog was empty."""
        return None if self.caught_up_s is None else self.caught_up_s - self.end_s


@dataclass(frozen=True)
class Result:
    """What one simulated window gave."""

    window_s: float
    """The CCRR study's 'latency': the time until the last tuple of the window was delivered."""
    arrived: int
    delivered: int
    unprocessed: int
    lost: int
    replayed: int
    checkpoints: int
    failures: int
    recoveries: int
    mean_wait_s: tuple[float, ...]
    utilisation: tuple[float, ...]
    mean_latency_s: float
    latency_quantiles_s: dict[str, float]
    above_target_fraction: float
    pauses: tuple[InputPause, ...] = field(repr=False, default=())
    curve_s: tuple[tuple[float, float, float], ...] = field(repr=False, default=())
    """(time, mean latency, worst latency) of the tuples delivered in each step."""

    @property
    def throughput_per_s(self) -> float:
        return self.delivered / self.window_s if self.window_s else math.inf
