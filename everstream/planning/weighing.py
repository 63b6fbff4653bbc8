"""Weighs the protocols: what each costs at an interval, and at which interval it costs least.

The cost of an interval is the share of time lost: pauses (and logging) when nothing fails,
plus, for each failure, the outage and the work done again, for the shards it stops. What a
protocol adds to these was measured; see `protocol_costs`.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace

from everstream.core.registry import named
from everstream.pipeline.checkpointing import CommunicationInduced
from everstream.planning import analytic
from everstream.planning.measured import Measured
from everstream.planning.protocol_costs import Costs, built_in
from everstream.planning.units import show_duration

_SHORTEST_S, _LONGEST_S = 0.1, 24 * 3600.0


@dataclass(frozen=True)
class Known:
    """The inputs of the advice. `assumed` names the values that were neither given nor measured."""

    rate_per_s: float
    capacity_per_s: float
    mtbf_s: float
    pause_s: float
    upload_s: float
    outage_s: float
    state_bytes: float
    bandwidth_bytes_per_s: float
    shards: int
    cycles: bool
    record_bytes: float
    """What a record takes on its way between shards, which is what a log writes."""
    exactly_once: bool
    """Records must not count twice after a failure."""
    costs: Costs
    failures_seen: int | None = None
    assumed: tuple[str, ...] = ()
    waited_s: float = 0.0
    """What of `upload_s` no store is to blame for: a checkpoint waited behind records."""

    @property
    def log_bytes_per_s(self) -> float:
        return self.rate_per_s * self.record_bytes


@dataclass(frozen=True)
class Option:
    """One protocol at its best interval, and what it costs."""

    protocol: str
    usable: bool
    interval_s: float
    overhead: float
    recovery_s: float
    worst_recovery_s: float
    replayed: float
    stopped_share: float
    """The share of the shards that stand still after one of them fails."""
    cost: float
    note: str
    meets_target: bool = True
    meets_overhead: bool = True


@dataclass(frozen=True)
class Promises:
    """What a user wants kept, if anything."""

    recovery_s: float | None = None
    """From a failure until caught up, at worst."""
    overhead: float | None = None
    """Share of the time that checkpoints may take when nothing fails."""


def system_of(known: Known, protocol: str, interval_s: float) -> analytic.Backlog:
    """The protocol's effect on the backlog model."""
    pause_s = known.pause_s + known.costs.stands_still_s.get(protocol, 0.0)
    upload_s, capacity = known.upload_s, known.capacity_per_s
    if named(protocol).logs:
        # Logs share the store with the checkpoints; an option that leaves too little is not usable.
        bandwidth = known.bandwidth_bytes_per_s
        upload_s *= bandwidth / max(0.01 * bandwidth, bandwidth - known.log_bytes_per_s)
        capacity *= 1 - logging_share_of(known, protocol)
        if known.cycles:
            interval_s /= 1 + known.costs.forced.get(protocol, 0.0)
    return analytic.Backlog(
        known.rate_per_s, capacity, interval_s, pause_s, upload_s, known.outage_s
    )


def logging_share_of(known: Known, protocol: str) -> float:
    """The share of the capacity that logs take, and what rides along on a cycle."""
    if not named(protocol).logs:
        return 0.0
    record_s = known.record_bytes * known.costs.log_s_per_byte[protocol]
    if known.cycles:
        record_s += known.costs.vectors_s_per_record.get(protocol, 0.0)
    return record_s / (1 / known.capacity_per_s + record_s)


def overhead_of(known: Known, protocol: str, interval_s: float) -> float:
    system = system_of(known, protocol, interval_s)
    return system.commit_s / system.period_s + logging_share_of(known, protocol)


def failure_cost_of(known: Known, protocol: str, interval_s: float) -> float:
    """Share of the time lost to failures: outage and work done again, for the shards it hits."""
    system = system_of(known, protocol, interval_s)
    lost_s = system.outage_s + system.mean_age_s * system.load
    return min(1.0, lost_s / known.mtbf_s) * stopped_share_of(known, protocol)


def stopped_share_of(known: Known, protocol: str) -> float:
    """As measured; at least the shard that failed."""
    return max(known.costs.went_back[protocol], 1 / known.shards)


def cost_of(known: Known, protocol: str, interval_s: float) -> float:
    return overhead_of(known, protocol, interval_s) + failure_cost_of(known, protocol, interval_s)


def intervals_for(known: Known, protocol: str) -> list[float]:
    """Candidates, evenly spaced by ratio; none shorter than a checkpoint takes to be stable."""
    shortest_s = max(_SHORTEST_S, system_of(known, protocol, _SHORTEST_S).upload_s)
    steps = 600
    ratio = math.log(max(2.0, _LONGEST_S / shortest_s))
    return [shortest_s * math.exp(ratio * i / steps) for i in range(steps + 1)]


def best_interval_s(known: Known, protocol: str, promises: Promises) -> float:
    """Least cost among the intervals that keep the promises; the recovery target comes first."""
    return min(
        intervals_for(known, protocol),
        key=lambda interval_s: (
            *broken(promises, known, protocol, interval_s),
            cost_of(known, protocol, interval_s),
        ),
    )


def broken(
    promises: Promises, known: Known, protocol: str, interval_s: float
) -> tuple[float, float]:
    """By how many seconds the worst recovery is late, and by which share overhead is too high."""
    system = system_of(known, protocol, interval_s)
    late_s, over = 0.0, 0.0
    if promises.recovery_s is not None:
        late_s = max(0.0, system.recovery_s(system.worst_age_s) - promises.recovery_s)
    if promises.overhead is not None:
        over = max(0.0, overhead_of(known, protocol, interval_s) - promises.overhead)
    return late_s, over


def weigh(known: Known, protocol: str, promises: Promises) -> Option:
    if named(protocol).choice is None:
        return _without_checkpoints(protocol)
    interval_s = best_interval_s(known, protocol, promises)
    system = system_of(known, protocol, interval_s)
    overhead = overhead_of(known, protocol, interval_s)
    worst_s = system.recovery_s(system.worst_age_s)
    usable, note = suits(known, protocol)
    if named(protocol).logs and known.log_bytes_per_s >= known.bandwidth_bytes_per_s:
        usable, note = False, "logging every frame would take more bandwidth than the store has"
    elif system.load >= 1:
        usable, note = False, "logging every frame would take more capacity than there is to spare"
    share = stopped_share_of(known, protocol)
    return Option(
        protocol=protocol,
        usable=usable,
        interval_s=interval_s,
        overhead=overhead,
        recovery_s=system.recovery_s(),
        worst_recovery_s=worst_s,
        replayed=known.rate_per_s * system.mean_age_s * share,
        stopped_share=share,
        cost=cost_of(known, protocol, interval_s),
        note=note,
        meets_target=promises.recovery_s is None or worst_s <= promises.recovery_s,
        meets_overhead=promises.overhead is None or overhead <= promises.overhead + 1e-12,
    )


def _without_checkpoints(protocol: str) -> Option:
    return Option(
        protocol=protocol,
        usable=False,
        interval_s=math.inf,
        overhead=0.0,
        recovery_s=math.inf,
        worst_recovery_s=math.inf,
        replayed=math.inf,
        stopped_share=1.0,
        cost=math.inf,
        note="a failure would start the whole run over",
    )


def suits(known: Known, protocol: str) -> tuple[bool, str]:
    """Whether the protocol can be had for this job, and why it should be or not."""
    facts = named(protocol)
    if known.cycles and not facts.cycles:
        return False, "its markers would deadlock on the feedback edges"
    if known.exactly_once and not facts.exactly_once:
        return False, "after a failure some records count twice (allow it: --no-exactly-once)"
    if protocol == "uncoordinated" and known.cycles:
        back = known.costs.rollback
        return False, (
            "on a cycle its checkpoints may not fit together: measured, a failure led "
            f"{back['uncoordinated']:.1f} intervals back, and {back['hmnr']:.1f} under hmnr"
        )
    if isinstance(facts.choice, CommunicationInduced) and not known.cycles:
        return False, "without cycles it never forces a checkpoint: uncoordinated is the same"
    if facts.logs:
        share = logging_share_of(known, protocol)
        text = (
            f"one failure stops {stopped_share_of(known, protocol):.0%} of the shards, as measured; "
            f"logging every frame takes {share:.2%} of the capacity"
        )
        return True, text + (", and no checkpoint is useless on a cycle" if known.cycles else "")
    cost_s = known.costs.stands_still_s.get(protocol, 0.0)
    cheap = (
        f"costs {show_duration(cost_s)} beyond saving the state, as measured"
        if cost_s
        else "showed no cost beyond saving the state when it was measured"
    )
    why = {
        "aligned": "the graph has no cycles and nothing has to be logged",
        "unaligned": "markers overtake waiting records, also on feedback edges",
        "at-least-once": "nothing waits for markers",
    }
    return True, f"{why[protocol]}; a checkpoint {cheap}"


def near_optimal(
    known: Known, protocol: str, interval_s: float, promises: Promises
) -> tuple[float, float]:
    """The range around an interval that costs at most a tenth more and breaks no more promises."""
    limit = 1.1 * cost_of(known, protocol, interval_s)
    late_s, over = broken(promises, known, protocol, interval_s)
    good = [interval_s]
    for other_s in intervals_for(known, protocol):
        other_late_s, other_over = broken(promises, known, protocol, other_s)
        kept = other_late_s <= late_s and other_over <= over
        if kept and cost_of(known, protocol, other_s) <= limit:
            good.append(other_s)
    return min(good), max(good)


def curve_of(known: Known, protocol: str) -> tuple[tuple[float, float, float, float], ...]:
    rows = []
    for interval_s in intervals_for(known, protocol)[::5]:
        system = system_of(known, protocol, interval_s)
        rows.append(
            (
                interval_s,
                overhead_of(known, protocol, interval_s),
                failure_cost_of(known, protocol, interval_s),
                system.recovery_s(),
            )
        )
    return tuple(rows)


_CAPTURE_BYTES_PER_S = 1e9
_WRITE_BYTES_PER_S = 200e6
_DAY_S = 86400.0
_RECORD_BYTES = 100.0
_NOTABLE_S = 1.0
"""A checkpoint that waits less than this behind records waits for no slow operator."""


class AdviceError(ValueError):
    """Advice is not possible with what is known; the message says what to add."""


@dataclass(frozen=True)
class PlanningInputs:
    """What a user gave or a run has shown, in base units; None is not known."""

    rate_per_s: float | None = None
    capacity_per_s: float | None = None
    state_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    mtbf_s: float | None = None
    recovery_s: float | None = None
    capture_s: float | None = None
    record_bytes: float | None = None
    shards: int | None = None
    cycles: bool = False
    exactly_once: bool = True
    costs: Costs = field(default_factory=built_in)
    """What each protocol was measured to cost."""
    upload_s: float | None = None
    """From a checkpoint's capture until it is stable; only a run can show it."""
    waited_s: float = 0.0
    """What of `upload_s` was spent behind records that waited for a slow operator."""
    failures_seen: int | None = None
    """How many failures `mtbf_s` was measured from; None if it was given."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """What a user should know about where these come from."""
        doubts = []
        if self.waited_s:
            doubts.append(
                f"a checkpoint waits {show_duration(self.waited_s)} behind records that pile up "
                "before a slow operator (back-pressure), and not for the store: give that operator "
                "more shards, or let checkpoints overtake the records (--checkpoint unaligned)"
            )
        if self.failures_seen is not None:
            doubts.append(
                f"the time between failures comes from {self.failures_seen} in this run; if they "
                "were injected, say the true one with --mtbf"
            )
        return tuple(doubts)


def with_measured(given: PlanningInputs, run: Measured) -> PlanningInputs:
    """What was not given, as a run has shown it."""
    known = replace(
        given,
        rate_per_s=given.rate_per_s or run.rate_per_s,
        shards=given.shards or run.shards or None,
        capacity_per_s=given.capacity_per_s or run.capacity_per_s,
    )
    if run.durations_s:
        pause_s = statistics.median(run.pauses_s)
        upload_s = max(0.0, statistics.median(run.durations_s) - pause_s)
        same_writes = given.state_bytes is None and given.bandwidth_bytes_per_s is None
        known = replace(
            known,
            capture_s=given.capture_s or pause_s or None,
            upload_s=upload_s if same_writes else None,
            waited_s=_waited_s(run) if same_writes else 0.0,
            state_bytes=given.state_bytes or statistics.median(run.sizes_bytes) or None,
        )
    if run.outages_s:
        outage_s = statistics.median(run.outages_s)
        known = replace(known, recovery_s=given.recovery_s or outage_s)
        if given.mtbf_s is None:
            known = replace(known, mtbf_s=run.mtbf_s, failures_seen=len(run.outages_s))
    return known


def _waited_s(run: Measured) -> float:
    """How long its checkpoints stood in a queue; 0 where that is not most of what they took."""
    if not run.waits_s:
        return 0.0
    waited_s, whole_s = statistics.median(run.waits_s), statistics.median(run.durations_s)
    return waited_s if waited_s > max(_NOTABLE_S, whole_s / 2) else 0.0


def completed(facts: PlanningInputs) -> Known:
    """All that is needed: given beats measured beats assumed, and what is assumed is named."""
    assumed: list[str] = []

    def assume(name: str, value: float) -> float:
        assumed.append(name)
        return value

    rate_per_s, capacity_per_s = facts.rate_per_s, facts.capacity_per_s
    if rate_per_s is None:
        raise AdviceError("say how many records arrive per second: --rate 50k/s, or --from-run")
    if facts.state_bytes is None and facts.upload_s is None:
        raise AdviceError("say how large the state is: --state-size 2GB, or --from-run")
    if capacity_per_s is None:
        capacity_per_s = assume("capacity (twice the rate)", 2 * rate_per_s)
    state_bytes = facts.state_bytes or 0.0
    bandwidth, upload_s = facts.bandwidth_bytes_per_s, facts.upload_s
    if bandwidth is None and upload_s and upload_s > facts.waited_s:
        bandwidth = state_bytes / (upload_s - facts.waited_s) or None
    if bandwidth is None:
        bandwidth = assume("write bandwidth (200 MB/s)", _WRITE_BYTES_PER_S)
    if upload_s is None:
        upload_s = state_bytes / bandwidth
    shards = facts.shards or int(assume("shards (1)", 1))
    capture_s, mtbf_s, recovery_s = facts.capture_s, facts.mtbf_s, facts.recovery_s
    if capture_s is None:
        capture_s = assume(
            "capture pause (state per shard at 1 GB/s)",
            max(1e-3, state_bytes / shards / _CAPTURE_BYTES_PER_S),
        )
    if mtbf_s is None:
        mtbf_s = assume("time between failures (1 day)", _DAY_S)
    if recovery_s is None:
        # A restart takes the same under all protocols, but for noise, and what was measured
        # restored next to nothing.
        writing_s = max(0.0, upload_s - facts.waited_s)
        reading_s = assume("reading the state back (as fast as writing it)", writing_s)
        recovery_s = statistics.median(facts.costs.restart_s.values()) + reading_s
    record_bytes = facts.record_bytes or assume("record size (100 B)", _RECORD_BYTES)
    return Known(
        rate_per_s=rate_per_s,
        capacity_per_s=capacity_per_s,
        mtbf_s=mtbf_s,
        pause_s=capture_s,
        upload_s=upload_s,
        waited_s=facts.waited_s,
        outage_s=recovery_s,
        state_bytes=state_bytes,
        bandwidth_bytes_per_s=bandwidth,
        shards=shards,
        cycles=facts.cycles,
        failures_seen=facts.failures_seen,
        assumed=tuple(assumed),
        record_bytes=record_bytes,
        exactly_once=facts.exactly_once,
        costs=facts.costs,
    )
