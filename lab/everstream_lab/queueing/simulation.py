"""Simulates a `Model`: arrays in, the compiled kernel, a `Result` out.

    >>> from everstream_lab.queueing import model as m
    >>> line = m.line(("clean", "count"), m.normal(80e-6, 10e-6))
    >>> system = m.Model(line, (m.SourceModel("clean", m.exponential(1e-3)),), window_tuples=10_000)
    >>> simulate(system, seed=1).delivered
    10000

The same seed gives the same failures whatever the behaviour, because failures and work draw
from two separate streams of random numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everstream_lab.queueing import kernel, kernel_control
from everstream_lab.queueing import kernel_state as slots
from everstream_lab.queueing.model import (
    Distribution,
    InputPause,
    Model,
    ModelError,
    Result,
    SourceModel,
)

Progress = Callable[[int], None]
"""Called now and then with the number of tuples delivered so far."""

_EVENTS_PER_CALL = 2_000_000
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def simulate(model: Model, seed: int = 0, progress: Progress | None = None) -> Result:
    """Push one window of tuples through the model."""
    work_seed, failure_seed = np.random.SeedSequence(seed).spawn(2)
    work_rng = np.random.Generator(np.random.PCG64(work_seed))
    failure_rng = np.random.Generator(np.random.PCG64(failure_seed))
    setting = _setting(model)
    state = _state(model, setting, failure_rng)
    hopeless_s = _hopeless_s(model)
    while True:
        why = kernel.advance(setting, state, work_rng, failure_rng, _EVENTS_PER_CALL)
        if progress is not None:
            progress(int(state.count[slots.DELIVERED]))
        if why == slots.FINISHED:
            return _result(model, setting, state)
        if state.clock[slots.NOW] > hopeless_s:
            raise ModelError(
                f"after {hopeless_s:.0f} simulated seconds only "
                f"{state.count[slots.DELIVERED]:,} of {model.expected_tuples:,} tuples were "
                "delivered: failures come faster than the system gets on; make them rarer or "
                "checkpoints and recoveries quicker"
            )
        state = _with_more_room(state, why, model)


def _hopeless_s(model: Model) -> float:
    """A hundred times what the window and one of everything would take."""
    expected_s = model.expected_tuples / min(model.rate_per_s, model.capacity_per_s)
    for source in model.sources:
        if source.load is not None and model.window_tuples:
            expected_s = max(expected_s, source.load.due_s(float(model.window_tuples)))
    if model.checkpoints is not None:
        parts = model.checkpoints
        expected_s += parts.interval_s + parts.commit_s + parts.upload_s
    if model.failures is not None:
        expected_s += model.failures.between.mean_s + model.failures.recovery_s
    return 100 * expected_s


def replicate(
    model: Model, replications: int, seed: int = 0, progress: Progress | None = None
) -> list[Result]:
    """Independent windows, with seeds `seed`, `seed + 1`, and so on."""
    results: list[Result] = []
    for number in range(replications):
        before = number * model.expected_tuples
        inner = None if progress is None else _shifted(progress, before)
        results.append(simulate(model, seed + number, inner))
    return results


def _shifted(progress: Progress, by: int) -> Progress:
    return lambda delivered: progress(by + delivered)


@dataclass(frozen=True)
class Estimate:
    """A mean over replications with the half-width of its 95 % confidence interval."""

    mean: float
    half_width: float
    replications: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width


# Student's t for 95 % two-sided, by degrees of freedom 1 to 30.
_STUDENT_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95 % confidence interval; infinitely wide for a single value."""
    if not values:
        raise ValueError("an estimate needs at least one value")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean, math.inf, 1)
    degrees = len(values) - 1
    student = _STUDENT_95[degrees - 1] if degrees <= 30 else 1.96 + 2.4 / degrees
    half_width = student * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, half_width, len(values))


def _law(distribution: Distribution) -> tuple[float, float, float]:
    return (
        float(slots.KINDS.index(distribution.kind)),
        float(distribution.first),
        float(distribution.second),
    )


def _source_law(source: SourceModel) -> tuple[float, float, float]:
    return (slots.BY_LOAD, 0.0, 0.0) if source.gap is None else _law(source.gap)


def _due(model: Model, count: int) -> Any:
    """When the sources that follow a load deliver; rows of the others are not looked at."""
    return np.array(
        [
            np.zeros(count) if source.load is None else source.due_s(count)
            for source in model.sources
        ]
    )


def _first_s(model: Model) -> list[float]:
    """When each source delivers first; never, if that is after a window of time."""
    end_s = math.inf if model.window_s is None else model.window_s
    first = [
        source.first_s if source.load is None else float(source.due_s(1)[0])
        for source in model.sources
    ]
    return [at_s if at_s <= end_s else math.inf for at_s in first]


def _setting(model: Model) -> slots.KernelSettings:
    index = {operator.name: i for i, operator in enumerate(model.operators)}
    route_start, route_to, route_up_to = [0], [], []
    sure_next = []
    for operator in model.operators:
        up_to = 0.0
        for name, probability in operator.next:
            up_to += probability
            route_to.append(index.get(name, -1))
            route_up_to.append(1.0 if abs(up_to - 1) < 1e-9 else up_to)
        route_start.append(len(route_to))
        first = route_start[-2]
        if first == len(route_to):
            sure_next.append(-1)
        else:
            sure_next.append(route_to[first] if route_up_to[first] == 1.0 else -2)
    checkpoints, failures = model.checkpoints, model.failures
    failing: list[int] = []
    failure_law = (0.0, math.inf, 0.0)
    if failures is not None and failures.at_s:
        failing = [index[failures.operators[0]]] * len(failures.at_s)
    elif failures is not None:
        failing = [index[name] for name in failures.operators]
        failure_law = _law(failures.between)
    backlog = model.behaviour == "backlog"
    return slots.KernelSettings(
        backlog=backlog,
        replays=backlog and bool(failing),
        window=model.window_tuples or np.iinfo(np.int64).max,
        until_s=math.inf if model.window_s is None else float(model.window_s),
        interval_s=float(checkpoints.interval_s) if checkpoints else math.inf,
        commit_s=float(checkpoints.commit_s) if checkpoints else 0.0,
        upload_s=float(checkpoints.upload_s) if checkpoints else 0.0,
        recovery_s=float(failures.recovery_s) if failures else 0.0,
        detection_s=float(failures.detection_s) if failures else 0.0,
        one_by_one=failures is None or failures.recovery == "one_by_one",
        up_time=failures is not None and failures.clock == "up_time",
        shared_clock=failures is not None and failures.clocks == "shared",
        in_flight_limit=model.in_flight_limit,
        target_s=float(model.latency_target_s),
        step_s=float(model.curve_step_s),
        source_to=np.array([index[source.to] for source in model.sources], dtype=np.int64),
        source_law=np.array([_source_law(source) for source in model.sources]),
        source_entities=np.array([source.entities for source in model.sources], dtype=np.int64),
        first_cpu=np.cumsum([0, *(operator.cpus for operator in model.operators)], dtype=np.int64),
        service_law=np.array([_law(operator.service) for operator in model.operators]),
        sure_next=np.array(sure_next, dtype=np.int64),
        route_start=np.array(route_start, dtype=np.int64),
        route_to=np.array(route_to, dtype=np.int64),
        route_up_to=np.array(route_up_to, dtype=np.float64),
        failing=np.array(failing, dtype=np.int64),
        failure_law=np.array(failure_law),
    )


def _power_of_two(at_least: int) -> int:
    return 1 << max(1, at_least - 1).bit_length()


def _state(
    model: Model, setting: slots.KernelSettings, failure_rng: np.random.Generator
) -> slots.State:
    operators = len(model.operators)
    cpus = int(setting.first_cpu[-1])
    most_at_once = int(setting.source_entities.max())
    room = _power_of_two(max(1024, 2 * most_at_once, model.in_flight_limit + most_at_once))
    log_room = _power_of_two(max(1 << 16, 2 * most_at_once)) if setting.backlog else 2
    steps = 64 + math.ceil(1.2 * model.expected_tuples / model.rate_per_s / model.curve_step_s)
    loads = any(source.load is not None for source in model.sources)
    clocks = min(1, len(setting.failing)) if setting.shared_clock else len(setting.failing)
    if model.failures is not None and model.failures.at_s:
        first_failures = np.array(model.failures.at_s, dtype=np.float64)
    else:
        first_failures = np.array(
            [kernel_control.draw(failure_rng, *setting.failure_law) for _ in range(clocks)],
            dtype=np.float64,
        )
    clock = np.full(slots.CLOCKS, math.inf)
    clock[slots.NOW] = 0.0
    clock[slots.LATENCY_SUM] = 0.0
    clock[slots.CHECKPOINT_AT] = setting.interval_s
    return slots.State(
        source_next=np.array(_first_s(model)),
        source_due=_due(model, 1 << 16 if loads else 2),
        source_given=np.zeros(len(model.sources), dtype=np.int64),
        cpu_done=np.full(cpus, math.inf),
        cpu_origin=np.zeros(cpus),
        cpu_tag=np.zeros(cpus, dtype=np.int64),
        operator_next=np.full(operators, math.inf),
        operator_cpu=np.zeros(operators, dtype=np.int64),
        queue_since=np.zeros((operators, room)),
        queue_origin=np.zeros((operators, room)),
        queue_tag=np.zeros((operators, room), dtype=np.int64),
        queue_head=np.zeros(operators, dtype=np.int64),
        queue_length=np.zeros(operators, dtype=np.int64),
        down=np.zeros(operators, dtype=np.int64),
        wait_sum=np.zeros(operators),
        busy_sum=np.zeros(operators),
        served=np.zeros(operators, dtype=np.int64),
        next_failure=first_failures,
        log_at=np.zeros(log_room),
        log_to=np.zeros(log_room, dtype=np.int64),
        log_done=np.zeros(log_room, dtype=np.bool_),
        count=np.zeros(slots.COUNTS, dtype=np.int64),
        clock=clock,
        flag=np.zeros(2, dtype=np.int64),
        histogram=np.zeros(slots.QUANTILE_BINS, dtype=np.int64),
        curve_sum=np.zeros(steps),
        curve_count=np.zeros(steps, dtype=np.int64),
        curve_worst=np.zeros(steps),
        loose_origin=np.zeros(room + cpus),
        loose_tag=np.zeros(room + cpus, dtype=np.int64),
        loose_to=np.zeros(room + cpus, dtype=np.int64),
        pauses=np.zeros((1024, 6)),
    )


def _with_more_room(state: slots.State, why: int, model: Model) -> slots.State:
    if why == slots.DUE_USED:
        return state._replace(source_due=_due(model, 2 * state.source_due.shape[1]))
    if why == slots.QUEUE_FULL:
        names = ("queue_since", "queue_origin", "queue_tag")
        grown = {name: _unrolled(getattr(state, name), state.queue_head) for name in names}
        grown |= {
            name: _doubled(getattr(state, name))
            for name in ("loose_origin", "loose_tag", "loose_to")
        }
        return state._replace(queue_head=np.zeros_like(state.queue_head), **grown)
    if why == slots.LOG_FULL:
        size = state.log_at.size
        numbers = np.arange(state.count[slots.BASE], state.count[slots.WRITTEN])
        grown = {}
        for name in ("log_at", "log_to", "log_done"):
            bigger = np.zeros(2 * size, dtype=getattr(state, name).dtype)
            bigger[numbers & (2 * size - 1)] = getattr(state, name)[numbers & (size - 1)]
            grown[name] = bigger
        return state._replace(**grown)
    if why == slots.CURVE_FULL:
        names = ("curve_sum", "curve_count", "curve_worst")
        return state._replace(**{name: _doubled(getattr(state, name)) for name in names})
    if why == slots.PAUSES_FULL:
        return state._replace(pauses=_doubled(state.pauses))
    return state


def _doubled(array: Any) -> Any:
    return np.concatenate([array, np.zeros_like(array)])


def _unrolled(rings: Any, heads: Any) -> Any:
    """Rings of twice the size, each turned so that its head is at 0."""
    turned = np.stack([np.roll(ring, -head) for ring, head in zip(rings, heads, strict=True)])
    return np.concatenate([turned, np.zeros_like(turned)], axis=1)


def _quantile(histogram: Any, share: float) -> float:
    total = histogram.sum()
    step = int(np.searchsorted(np.cumsum(histogram), share * total))
    return float(slots.QUANTILE_LOWEST_S * 10 ** ((step + 0.5) / slots.QUANTILE_STEPS_PER_DECADE))


def _result(model: Model, setting: slots.KernelSettings, state: slots.State) -> Result:
    count = [int(value) for value in state.count]
    window_s = float(state.clock[slots.NOW])
    delivered = count[slots.DELIVERED]
    pauses = tuple(
        InputPause(
            kind="checkpoint" if row[0] == 0 else "recovery",
            start_s=float(row[1]),
            end_s=float(row[2]),
            caught_up_s=None if math.isnan(row[3]) else float(row[3]),
            replayed=int(row[4]),
            backlog=int(row[5]),
        )
        for row in state.pauses[: count[slots.PAUSES]]
    )
    steps = np.flatnonzero(state.curve_count)
    cpus = np.diff(setting.first_cpu)
    return Result(
        window_s=window_s,
        arrived=count[slots.ARRIVED],
        delivered=delivered,
        unprocessed=count[slots.UNPROCESSED],
        lost=count[slots.LOST],
        replayed=count[slots.REPLAYED],
        checkpoints=count[slots.CHECKPOINTS],
        failures=count[slots.FAILURES],
        recoveries=count[slots.RECOVERIES],
        mean_wait_s=tuple(
            float(total / served) if served else 0.0
            for total, served in zip(state.wait_sum, state.served, strict=True)
        ),
        utilisation=tuple(
            float(busy / (n * window_s)) if window_s else 0.0
            for busy, n in zip(state.busy_sum, cpus, strict=True)
        ),
        mean_latency_s=float(state.clock[slots.LATENCY_SUM]) / max(1, delivered),
        latency_quantiles_s={
            name: _quantile(state.histogram, share) for name, share in _QUANTILES.items()
        },
        above_target_fraction=count[slots.ABOVE_TARGET] / max(1, delivered),
        pauses=pauses,
        curve_s=tuple(
            zip(
                (steps * model.curve_step_s).tolist(),
                (state.curve_sum[steps] / state.curve_count[steps]).tolist(),
                state.curve_worst[steps].tolist(),
                strict=True,
            )
        ),
    )
