"""Says how often to checkpoint, with which protocol, what that costs and what a failure costs.

`advise` gathers what is known (given, measured, or assumed and then said so), weighs each
protocol with the formulas of `analytic`, picks one, and explains itself. The expected cost of
an interval is the share of time lost: pauses when nothing fails, plus, for each failure, the
outage and the work done again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from everstream.planning import measured, weighing
from everstream.planning.units import (
    parse_duration_s,
    parse_fraction,
    parse_rate_per_s,
    parse_size_bytes,
    show_duration,
    show_size,
)
from everstream.planning.weighing import PROTOCOLS, Known, Option, Protocol

_ASSUMED_SPREAD = 2.0
"""How far off an assumed value may be, as a factor either way; a given one is taken as 10 %."""
_CAPTURE_BYTES_PER_S = 1e9


class AdviceError(ValueError):
    """Advice is not possible with what is known; the message says what to add."""


@dataclass(frozen=True)
class Advice:
    """The answer. `str(advice)` reads well; the fields are for programs."""

    known: Known
    protocol: Protocol
    interval_s: float
    why_interval: str
    why_protocol: str
    overhead: float
    """Share of the time that checkpoints stop the job when nothing fails."""
    outage_s: float
    catch_up_s: float
    worst_recovery_s: float
    records_replayed: float
    delayed_s: float
    """Latency of a record that arrives just as the failure strikes."""
    near_optimal_s: tuple[float, float]
    """Intervals in this range cost at most a tenth more than the best."""
    likely_s: tuple[float, float]
    """Where the best interval may lie, given how sure the inputs are."""
    sureness: str
    options: tuple[Option, ...]
    warnings: tuple[str, ...] = ()
    curve: tuple[tuple[float, float, float, float], ...] = field(default=(), repr=False)
    """(interval, cost of checkpoints, cost of failures, recovery time) over a range."""

    def _stopped(self) -> str:
        coordinated = self.protocol in ("aligned", "unaligned")
        return "all shards" if coordinated else f"1 of {self.known.shards} shards"

    def __str__(self) -> str:
        low, high = self.near_optimal_s
        lines = [
            f"Checkpoint every {show_duration(self.interval_s)}, {self.protocol}.",
            f"  interval   {self.why_interval}",
            f"  protocol   {self.why_protocol}",
            f"  no failure costs {self.overhead:.2%} of the time",
            f"  a failure  stops {self._stopped()} for {show_duration(self.outage_s)}, then "
            f"{show_duration(self.catch_up_s)} to catch up; "
            f"{self.records_replayed:,.0f} records are replayed; a record may be "
            f"{show_duration(self.delayed_s)} late",
            f"  worst case {show_duration(self.worst_recovery_s)} from failure to caught up",
            f"  good range {show_duration(low)} to {show_duration(high)} costs at most 10 % more",
            f"  how sure   {self.sureness}",
        ]
        lines += [f"  note       {warning}" for warning in self.warnings]
        return "\n".join(lines)


def advise(
    *,
    from_run: str | Path | None = None,
    state_size: str | float | None = None,
    write_bandwidth: str | float | None = None,
    rate: str | float | None = None,
    capacity: str | float | None = None,
    mtbf: str | float | None = None,
    recovery: str | float | None = None,
    capture: str | float | None = None,
    shards: int | None = None,
    cycles: bool = False,
    target_recovery: str | float | None = None,
    max_overhead: str | float | None = None,
) -> Advice:
    """Advise on interval and protocol. Give strings like `"2GB"` or plain numbers in base units.

    >>> advice = advise(state_size="1GB", write_bandwidth="200MB/s", rate=50_000,
    ...                 capacity=150_000, mtbf="6h", recovery="1s", shards=4)
    >>> advice.protocol
    'aligned'
    """
    run = measured.read_run(from_run) if from_run is not None else None
    known, warnings = _gather(
        run,
        _quantity(state_size, parse_size_bytes),
        _quantity(write_bandwidth, parse_size_bytes),
        _quantity(rate, parse_rate_per_s),
        _quantity(capacity, parse_rate_per_s),
        _quantity(mtbf, parse_duration_s),
        _quantity(recovery, parse_duration_s),
        _quantity(capture, parse_duration_s),
        shards,
        cycles,
    )
    target_s = _quantity(target_recovery, parse_duration_s)
    overhead = _quantity(max_overhead, parse_fraction)
    if overhead is not None and overhead >= 1:
        raise AdviceError(f"max_overhead is a share below 1 (0.02 is 2 %), not {max_overhead!r}")
    return advise_from(known, target_s, overhead, warnings)


def advise_from(
    known: Known,
    target_recovery_s: float | None = None,
    max_overhead: float | None = None,
    warnings: tuple[str, ...] = (),
) -> Advice:
    """The decision itself, from facts that are already gathered."""
    if known.rate_per_s >= known.capacity_per_s:
        raise AdviceError(
            f"records arrive at {known.rate_per_s:,.0f}/s and the job can do "
            f"{known.capacity_per_s:,.0f}/s: it could never catch up after a failure. "
            "Add shards or say the true --capacity."
        )
    options = tuple(weighing.weigh(known, p, target_recovery_s, max_overhead) for p in PROTOCOLS)
    usable = [option for option in options if option.usable]
    best = min(
        usable,
        key=lambda option: (not option.meets_target, not option.meets_overhead, option.cost),
    )
    # The simplest protocol is worth a little: keep the first that is nearly as good.
    for option in usable:
        same = (option.meets_target, option.meets_overhead) == (
            best.meets_target,
            best.meets_overhead,
        )
        if same and option.cost <= best.cost * 1.05 + 1e-6:
            best = option
            break
    system = weighing.system_of(known, best.protocol, best.interval_s)
    curve = weighing.curve_of(known, best.protocol)
    likely = _likely(known, best.protocol, target_recovery_s, max_overhead)
    if not best.meets_target and target_recovery_s is not None:
        warnings += (
            f"no protocol meets the recovery target of {show_duration(target_recovery_s)}: even "
            f"with checkpoints this close together the worst recovery takes "
            f"{show_duration(best.worst_recovery_s)}; it needs more capacity, a faster store or a "
            "faster restart",
        )
    if not best.meets_overhead and max_overhead is not None:
        warnings += (
            f"checkpoints cost {best.overhead:.2%}, over the {max_overhead:.2%} allowed, because "
            "the recovery target needs them this close together",
        )
    return Advice(
        known=known,
        protocol=best.protocol,
        interval_s=best.interval_s,
        why_interval=_why_interval(known, best, target_recovery_s, max_overhead),
        why_protocol=best.note,
        overhead=best.overhead,
        outage_s=system.outage_s,
        catch_up_s=system.catch_up_s(),
        worst_recovery_s=best.worst_recovery_s,
        records_replayed=best.replayed,
        delayed_s=system.peak_latency_s(),
        near_optimal_s=weighing.near_optimal(
            known, best.protocol, best.interval_s, target_recovery_s, max_overhead
        ),
        likely_s=likely,
        sureness=_sureness(known, likely),
        options=options,
        warnings=warnings,
        curve=curve,
    )


def _quantity(value: str | float | None, parse: Callable[[str], float]) -> float | None:
    if value is None:
        return None
    number = parse(value) if isinstance(value, str) else float(value)
    if not (math.isfinite(number) and number > 0):
        raise AdviceError(f"{value!r} must be above zero")
    return number


def _gather(
    run: measured.Measured | None,
    state_bytes: float | None,
    bandwidth: float | None,
    rate: float | None,
    capacity: float | None,
    mtbf_s: float | None,
    recovery_s: float | None,
    capture_s: float | None,
    shards: int | None,
    cycles: bool,
) -> tuple[Known, tuple[str, ...]]:
    """Given beats measured beats assumed; what is assumed is named."""
    assumed: list[str] = []
    warnings: list[str] = []
    upload_s: float | None = None
    failures_seen: int | None = None
    if run is not None:
        rate = rate or run.rate_per_s
        shards = shards or run.shards or None
        capacity = capacity or run.capacity_per_s
        if run.durations_s:
            pause_s = statistics.median(run.pauses_s)
            capture_s = capture_s or pause_s or None
            if state_bytes is None and bandwidth is None:
                upload_s = max(0.0, statistics.median(run.durations_s) - pause_s)
            state_bytes = state_bytes or statistics.median(run.sizes_bytes) or None
        if run.outages_s:
            recovery_s = recovery_s or statistics.median(run.outages_s)
            if mtbf_s is None:
                failures_seen = len(run.outages_s)
                mtbf_s = run.mtbf_s
                warnings.append(
                    f"the time between failures comes from {failures_seen} in this run; if they "
                    "were injected, say the true one with --mtbf"
                )

    def assume(name: str, value: float) -> float:
        assumed.append(name)
        return value

    if rate is None:
        raise AdviceError("say how many records arrive per second: --rate 50k/s, or --from-run")
    if capacity is None:
        capacity = assume("capacity (twice the rate)", 2 * rate)
    if state_bytes is None and upload_s is None:
        raise AdviceError("say how large the state is: --state-size 2GB, or --from-run")
    state_bytes = state_bytes or 0.0
    if bandwidth is None:
        if upload_s:
            bandwidth = state_bytes / upload_s or assume("write bandwidth (200 MB/s)", 200e6)
        else:
            bandwidth = assume("write bandwidth (200 MB/s)", 200e6)
    if upload_s is None:
        upload_s = state_bytes / bandwidth
    count = shards or int(assume("shards (1)", 1))
    if capture_s is None:
        capture_s = assume(
            "capture pause (state per shard at 1 GB/s)",
            max(1e-3, state_bytes / count / _CAPTURE_BYTES_PER_S),
        )
    if mtbf_s is None:
        mtbf_s = assume("time between failures (1 day)", 86400.0)
    if recovery_s is None:
        # Restart on Spark takes about a second; restore reads what a checkpoint wrote.
        recovery_s = assume("recovery (1 s and reading the state)", 1.0 + upload_s)
    return (
        Known(
            rate_per_s=rate,
            capacity_per_s=capacity,
            mtbf_s=mtbf_s,
            pause_s=capture_s,
            upload_s=upload_s,
            outage_s=recovery_s,
            state_bytes=state_bytes,
            bandwidth_bytes_per_s=bandwidth,
            shards=count,
            cycles=cycles,
            failures_seen=failures_seen,
            assumed=tuple(assumed),
        ),
        tuple(warnings),
    )


def _why_interval(
    known: Known, option: Option, target_s: float | None, max_overhead: float | None
) -> str:
    system = weighing.system_of(known, option.protocol, option.interval_s)
    free_s = weighing.best_interval_s(known, option.protocol, None, None)
    text = (
        f"a checkpoint stops the job for {show_duration(system.commit_s)} and one failure is "
        f"expected every {show_duration(known.mtbf_s)}"
    )
    if known.state_bytes:
        text += f"; writing {show_size(known.state_bytes)} takes {show_duration(known.upload_s)}"
    if target_s is not None and option.interval_s < free_s * 0.99:
        return f"{text}; shorter than the cheapest ({show_duration(free_s)}) to meet the target of {show_duration(target_s)}"
    if max_overhead is not None and option.interval_s > free_s * 1.01:
        return f"{text}; longer than the cheapest ({show_duration(free_s)}) to stay within {max_overhead:.2%}"
    return text + "; this makes the sum of both costs least"


def _likely(
    known: Known, protocol: Protocol, target_s: float | None, max_overhead: float | None
) -> tuple[float, float]:
    """The best interval at the ends of what the inputs may be."""
    names = " ".join(known.assumed)
    mtbf_spread = _ASSUMED_SPREAD if "time between" in names else 1.1
    low_mtbf, high_mtbf = known.mtbf_s / mtbf_spread, known.mtbf_s * mtbf_spread
    if known.failures_seen:
        # Roughly the 80 % range for the mean of so many exponential gaps.
        spread = 1.28 / math.sqrt(known.failures_seen)
        low_mtbf, high_mtbf = known.mtbf_s / (1 + spread), known.mtbf_s * (1 + spread)
    pause_spread = _ASSUMED_SPREAD if "capture" in names else 1.1
    low = replace(known, mtbf_s=low_mtbf, pause_s=known.pause_s / pause_spread)
    high = replace(known, mtbf_s=high_mtbf, pause_s=known.pause_s * pause_spread)
    found = [weighing.best_interval_s(k, protocol, target_s, max_overhead) for k in (low, high)]
    return min(found), max(found)


def _sureness(known: Known, likely: tuple[float, float]) -> str:
    text = (
        f"the best interval lies between {show_duration(likely[0])} and {show_duration(likely[1])}"
    )
    if known.assumed:
        return text + "; assumed, not known: " + ", ".join(known.assumed)
    return text + "; every input was given or measured"
