"""Says how often to checkpoint, with which protocol, what that costs and what a failure costs.

`advise` completes what is known, weighs each protocol with the formulas of
`analytic` (`weighing`), picks one, and explains itself. The expected cost of
an interval is the share of time lost: pauses when nothing fails, plus, for each failure, the
outage and the work done again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from everstream.core.registry import PROTOCOLS, named
from everstream.pipeline.checkpointing import EngineName
from everstream.planning import weighing
from everstream.planning.measured import read_run
from everstream.planning.protocol_costs import built_in, read_costs
from everstream.planning.units import (
    parse_duration_s,
    parse_fraction,
    parse_rate_per_s,
    parse_size_bytes,
    show_duration,
    show_size,
)
from everstream.planning.weighing import (
    AdviceError,
    Known,
    Option,
    PlanningInputs,
    Promises,
    completed,
    with_measured,
)

LEAST_LATENCY_S = 0.3
"""Sooner than this a micro-batch rarely shows its results."""
MANY_PER_SLOT = 4
"""From this many shards per slot on, shards that share a slot wait for each other anyway."""


@dataclass(frozen=True)
class EngineChoice:
    """The engine, and why."""

    engine: EngineName
    why: str
    warning: str | None = None


def choose(
    *,
    shards: int,
    cycles: bool = False,
    slots: int | None = None,
    sockets: bool = True,
    max_latency_s: float | None = None,
) -> EngineChoice:
    """`sockets`: whether workers may open them. `max_latency_s`: None if not given."""
    soon = max_latency_s is not None and max_latency_s < LEAST_LATENCY_S
    if not sockets:
        warning = None
        if cycles:
            warning = (
                "records go round one hop per epoch: what goes round often takes that many epochs"
            )
        if soon and max_latency_s is not None:
            warning = (
                f"results within {show_duration(max_latency_s)} cannot be promised: an epoch of "
                f"micro-batches takes up to {show_duration(LEAST_LATENCY_S)} however little it reads"
            )
        return EngineChoice("microbatch", "workers may not open sockets", warning)
    if cycles:
        return EngineChoice("tasks", "records go round in this graph")
    if soon:
        return EngineChoice("tasks", "results are wanted sooner than a micro-batch takes")
    if slots is not None and shards >= MANY_PER_SLOT * slots and max_latency_s is not None:
        why = (
            f"{shards} shards take turns on {slots} slot(s), and results may take "
            f"{show_duration(max_latency_s)}"
        )
        return EngineChoice("microbatch", why)
    return EngineChoice("tasks", "nothing speaks for micro-batches, which are slower")


_ASSUMED_SPREAD = 2.0
"""How far off an assumed value may be, as a factor either way; a given one is taken as 10 %."""


@dataclass(frozen=True)
class Advice:
    """The answer. `str(advice)` reads well; the fields are for programs."""

    known: Known
    protocol: str
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
    engine: EngineName = "tasks"
    why_engine: str = ""
    curve: tuple[tuple[float, float, float, float], ...] = field(default=(), repr=False)
    """(interval, cost of checkpoints, cost of failures, recovery time) over a range."""

    def _stopped(self) -> str:
        if not named(self.protocol).logs:
            return "all shards"
        share = weighing.stopped_share_of(self.known, self.protocol)
        return f"about {math.ceil(share * self.known.shards)} of {self.known.shards} shards"

    def __str__(self) -> str:
        low, high = self.near_optimal_s
        lines = [
            f"Checkpoint every {show_duration(self.interval_s)}, {self.protocol}.",
            f"  interval   {self.why_interval}",
            f"  protocol   {self.why_protocol}",
            f"  engine     {self.engine}: {self.why_engine}",
            f"  no failure costs {self.overhead:.2%} of the time",
            f"  a failure  stops {self._stopped()} for {show_duration(self.outage_s)}, then "
            f"{show_duration(self.catch_up_s)} to catch up; "
            f"{self.records_replayed:,.0f} records are replayed; a record may be "
            f"{show_duration(self.delayed_s)} late",
            f"  worst case {show_duration(self.worst_recovery_s)} from failure to caught up",
            f"  good range {show_duration(low)} to {show_duration(high)} costs at most 10 % more",
            f"  how sure   {self.sureness}",
            f"  protocols  {self.known.costs}",
        ]
        lines += [f"  note       {warning}" for warning in self.warnings]
        return "\n".join(lines)


def advise(
    *,
    from_run: str | Path | None = None,
    measured: str | Path | None = None,
    state_size: str | float | None = None,
    write_bandwidth: str | float | None = None,
    rate: str | float | None = None,
    capacity: str | float | None = None,
    mtbf: str | float | None = None,
    recovery: str | float | None = None,
    capture: str | float | None = None,
    record_size: str | float | None = None,
    shards: int | None = None,
    cycles: bool = False,
    exactly_once: bool = True,
    target_recovery: str | float | None = None,
    max_overhead: str | float | None = None,
    slots: int | None = None,
    sockets: bool = True,
    max_latency: str | float | None = None,
) -> Advice:
    """Advise on interval, protocol and engine. Give strings like `"2GB"` or plain numbers in base units.

    `slots` is how many tasks Spark can run at once, `sockets` whether its workers may talk to each
    other, and `max_latency` how long results may take: they decide about the engine.

    `measured` is a file that `everstream bench protocols` wrote on your machine; without one the
    protocols are weighed with the measurement that comes with the package.

    >>> from everstream.planning import advise
    >>> advice = advise(state_size="1GB", write_bandwidth="200MB/s", rate=50_000,
    ...                    capacity=150_000, mtbf="6h", recovery="1s", shards=4)
    >>> advice.protocol
    'aligned'
    """
    facts = PlanningInputs(
        state_bytes=_quantity(state_size, parse_size_bytes),
        bandwidth_bytes_per_s=_quantity(write_bandwidth, parse_size_bytes),
        rate_per_s=_quantity(rate, parse_rate_per_s),
        capacity_per_s=_quantity(capacity, parse_rate_per_s),
        mtbf_s=_quantity(mtbf, parse_duration_s),
        recovery_s=_quantity(recovery, parse_duration_s),
        capture_s=_quantity(capture, parse_duration_s),
        record_bytes=_quantity(record_size, parse_size_bytes),
        shards=shards,
        cycles=cycles,
        exactly_once=exactly_once,
        costs=read_costs(measured) if measured is not None else built_in(),
    )
    if from_run is not None:
        facts = with_measured(facts, read_run(from_run))
    known = completed(facts)
    promises = Promises(
        _quantity(target_recovery, parse_duration_s), _quantity(max_overhead, parse_fraction)
    )
    if promises.overhead is not None and promises.overhead >= 1:
        raise AdviceError(f"max_overhead is a share below 1 (0.02 is 2 %), not {max_overhead!r}")
    latency_s = _quantity(max_latency, parse_duration_s)
    engine = choose(
        shards=known.shards,
        cycles=known.cycles,
        slots=slots,
        sockets=sockets,
        max_latency_s=latency_s,
    )
    return advise_from(known, promises, facts.doubts, engine, latency_s)


def advise_from(
    known: Known,
    promises: Promises,
    doubts: tuple[str, ...],
    engine: EngineChoice,
    max_latency_s: float | None = None,
) -> Advice:
    """The decision itself, from facts that are already gathered."""
    if known.rate_per_s >= known.capacity_per_s:
        raise AdviceError(
            f"records arrive at {known.rate_per_s:,.0f}/s and the job can do "
            f"{known.capacity_per_s:,.0f}/s: it could never catch up after a failure. "
            "Add shards or say the true --capacity."
        )
    rounds = known.cycles and engine.engine == "microbatch"
    if rounds:  # within an epoch nothing goes round
        known = replace(known, cycles=False)
    options = tuple(weighing.weigh(known, protocol, promises) for protocol in PROTOCOLS)
    usable = [option for option in options if option.usable]
    if engine.engine == "microbatch":
        usable = [option for option in usable if option.protocol == "aligned"]
    best = _best_of(usable)
    system = weighing.system_of(known, best.protocol, best.interval_s)
    likely = _likely(known, best.protocol, promises)
    return Advice(
        known=known,
        protocol=best.protocol,
        interval_s=best.interval_s,
        why_interval=_why_interval(known, best, promises),
        why_protocol=_OF_ROUNDS if rounds else best.note,
        overhead=best.overhead,
        outage_s=system.outage_s,
        catch_up_s=system.catch_up_s(),
        worst_recovery_s=best.worst_recovery_s,
        records_replayed=best.replayed,
        delayed_s=system.peak_latency_s(),
        near_optimal_s=weighing.near_optimal(known, best.protocol, best.interval_s, promises),
        likely_s=likely,
        sureness=_sureness(known, likely),
        options=options,
        warnings=(*doubts, *_not_kept(best, promises), *_of_engine(engine, best, max_latency_s)),
        engine=engine.engine,
        why_engine=engine.why,
        curve=weighing.curve_of(known, best.protocol),
    )


_OF_ROUNDS = "what goes round waits for the next epoch, and is saved with this one"


def _best_of(usable: list[Option]) -> Option:
    best = min(
        usable,
        key=lambda option: (not option.meets_target, not option.meets_overhead, option.cost),
    )
    # The simplest protocol is worth a little: keep the first that is nearly as good.
    kept = (best.meets_target, best.meets_overhead)
    return next(
        option
        for option in usable
        if (option.meets_target, option.meets_overhead) == kept
        and option.cost <= best.cost * 1.05 + 1e-6
    )


def _not_kept(best: Option, promises: Promises) -> Iterator[str]:
    """The promises that even the best choice breaks."""
    if not best.meets_target and promises.recovery_s is not None:
        yield (
            f"no protocol meets the recovery target of {show_duration(promises.recovery_s)}: even "
            f"with checkpoints this close together the worst recovery takes "
            f"{show_duration(best.worst_recovery_s)}; it needs more capacity, a faster store or a "
            "faster restart"
        )
    if not best.meets_overhead and promises.overhead is not None:
        yield (
            f"checkpoints cost {best.overhead:.2%}, over the {promises.overhead:.2%} allowed, "
            "because the recovery target needs them this close together"
        )


def _of_engine(engine: EngineChoice, best: Option, max_latency_s: float | None) -> Iterator[str]:
    if engine.warning is not None:
        yield engine.warning
    late = max_latency_s is not None and best.interval_s > max_latency_s
    if engine.engine == "microbatch" and late and max_latency_s is not None:
        yield (
            "with micro-batches a result shows at the end of its epoch: to have it within "
            f"{show_duration(max_latency_s)}, take epochs no longer than that"
        )


def _quantity(value: str | float | None, parse: Callable[[str], float]) -> float | None:
    if value is None:
        return None
    number = parse(value) if isinstance(value, str) else float(value)
    if not (math.isfinite(number) and number > 0):
        raise AdviceError(f"{value!r} must be above zero")
    return number


def _why_interval(known: Known, option: Option, promises: Promises) -> str:
    system = weighing.system_of(known, option.protocol, option.interval_s)
    free_s = weighing.best_interval_s(known, option.protocol, Promises())
    text = (
        f"a checkpoint stops the job for {show_duration(system.commit_s)} and one failure is "
        f"expected every {show_duration(known.mtbf_s)}"
    )
    if known.state_bytes:
        writing_s = max(0.0, known.upload_s - known.waited_s)
        text += f"; writing {show_size(known.state_bytes)} takes {show_duration(writing_s)}"
    cheapest = f"than the cheapest ({show_duration(free_s)})"
    if promises.recovery_s is not None and option.interval_s < free_s * 0.99:
        target = show_duration(promises.recovery_s)
        return f"{text}; shorter {cheapest} to meet the target of {target}"
    if promises.overhead is not None and option.interval_s > free_s * 1.01:
        return f"{text}; longer {cheapest} to stay within {promises.overhead:.2%}"
    return text + "; this makes the sum of both costs least"


def _likely(known: Known, protocol: str, promises: Promises) -> tuple[float, float]:
    """The best interval at the ends of what the inputs may be."""
    names = " ".join(known.assumed)
    mtbf_spread = _ASSUMED_SPREAD if "time between" in names else 1.1
    low_mtbf, high_mtbf = known.mtbf_s / mtbf_spread, known.mtbf_s * mtbf_spread
    if known.failures_seen:
        # Roughly the 80 % range for the mean of this many exponential gaps.
        spread = 1.28 / math.sqrt(known.failures_seen)
        low_mtbf, high_mtbf = known.mtbf_s / (1 + spread), known.mtbf_s * (1 + spread)
    pause_spread = _ASSUMED_SPREAD if "capture" in names else 1.1
    low = replace(known, mtbf_s=low_mtbf, pause_s=known.pause_s / pause_spread)
    high = replace(known, mtbf_s=high_mtbf, pause_s=known.pause_s * pause_spread)
    intervals = [weighing.best_interval_s(bound, protocol, promises) for bound in (low, high)]
    return min(intervals), max(intervals)


def _sureness(known: Known, likely: tuple[float, float]) -> str:
    text = (
        f"the best interval lies between {show_duration(likely[0])} and {show_duration(likely[1])}"
    )
    if known.assumed:
        return text + "; assumed, not known: " + ", ".join(known.assumed)
    return text + "; every input was given or measured"
