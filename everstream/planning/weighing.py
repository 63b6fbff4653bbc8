"""Weighs the protocols: what each costs at an interval, and at which interval it costs least.

The cost of an interval is the share of time lost: pauses (and logging) when nothing fails,
plus, for each failure, the outage and the work done again, for the shards it stops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from everstream.planning import analytic

Protocol = Literal["aligned", "unaligned", "uncoordinated", "communication-induced"]
PROTOCOLS: tuple[Protocol, ...] = (
    "aligned",
    "unaligned",
    "uncoordinated",
    "communication-induced",
)

_SHORTEST_S, _LONGEST_S = 0.1, 24 * 3600.0
_RECORD_BYTES = 100.0
_FRAME_S = 0.01


@dataclass(frozen=True)
class Known:
    """What the advice rests on. `assumed` names the values nobody gave or measured."""

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
    failures_seen: int | None = None
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """One protocol at its best interval, and what it costs."""

    protocol: Protocol
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


def system_of(known: Known, protocol: Protocol, interval_s: float) -> analytic.Backlog:
    """The protocol's effect on the backlog model."""
    load = known.rate_per_s / known.capacity_per_s
    pause_s, upload_s, capacity = known.pause_s, known.upload_s, known.capacity_per_s
    if protocol == "aligned":
        # Inputs that have shown their marker wait for the slowest: about one queue of frames.
        pause_s += _FRAME_S * load / (1 - load)
    elif protocol == "unaligned":
        # What a marker overtakes is written with the checkpoint.
        in_flight_bytes = known.rate_per_s * _FRAME_S * load / (1 - load) * _RECORD_BYTES
        upload_s += in_flight_bytes / known.bandwidth_bytes_per_s
    else:
        # Every frame is logged by its sender, which takes its share of the write bandwidth.
        capacity *= 1 - logging_share_of(known)
        if protocol == "communication-induced":
            # Forced checkpoints come on top of the timer's; they are taken to be as many again.
            interval_s /= 2
    return analytic.Backlog(
        known.rate_per_s, capacity, interval_s, pause_s, upload_s, known.outage_s
    )


def logging_share_of(known: Known) -> float:
    log_bytes_per_s = known.rate_per_s * _RECORD_BYTES
    return min(0.95, 0.5 * log_bytes_per_s / (known.bandwidth_bytes_per_s + log_bytes_per_s))


def overhead_of(known: Known, protocol: Protocol, interval_s: float) -> float:
    system = system_of(known, protocol, interval_s)
    logging = 0.0 if protocol in ("aligned", "unaligned") else logging_share_of(known)
    return system.commit_s / system.period_s + logging


def failure_cost_of(known: Known, protocol: Protocol, interval_s: float) -> float:
    """Share of the time lost to failures: outage and work done again, for the shards it hits."""
    system = system_of(known, protocol, interval_s)
    lost_s = system.outage_s + system.mean_age_s * system.load
    return min(1.0, lost_s / known.mtbf_s) * stopped_share_of(known, protocol)


def stopped_share_of(known: Known, protocol: Protocol) -> float:
    """A coordinated rollback takes every shard back; with logs only the failed one replays."""
    return 1.0 if protocol in ("aligned", "unaligned") else 1 / known.shards


def cost_of(known: Known, protocol: Protocol, interval_s: float) -> float:
    return overhead_of(known, protocol, interval_s) + failure_cost_of(known, protocol, interval_s)


def intervals_for(known: Known, protocol: Protocol) -> list[float]:
    """Candidates, evenly spaced by ratio; none shorter than a checkpoint takes to be stable."""
    shortest_s = max(_SHORTEST_S, system_of(known, protocol, _SHORTEST_S).upload_s)
    steps = 600
    ratio = math.log(max(2.0, _LONGEST_S / shortest_s))
    return [shortest_s * math.exp(ratio * i / steps) for i in range(steps + 1)]


def best_interval_s(
    known: Known, protocol: Protocol, target_s: float | None, max_overhead: float | None
) -> float:
    """Least cost among the intervals that keep the promises; the recovery target comes first."""
    return min(
        intervals_for(known, protocol),
        key=lambda interval_s: (
            *broken_promises(known, protocol, interval_s, target_s, max_overhead),
            cost_of(known, protocol, interval_s),
        ),
    )


def broken_promises(
    known: Known,
    protocol: Protocol,
    interval_s: float,
    target_s: float | None,
    max_overhead: float | None,
) -> tuple[float, float]:
    """By how many seconds the worst recovery is late, and by which share overhead is too high."""
    system = system_of(known, protocol, interval_s)
    late_s, over = 0.0, 0.0
    if target_s is not None:
        late_s = max(0.0, system.recovery_s(system.worst_age_s) - target_s)
    if max_overhead is not None:
        over = max(0.0, overhead_of(known, protocol, interval_s) - max_overhead)
    return late_s, over


def weigh(
    known: Known, protocol: Protocol, target_s: float | None, max_overhead: float | None
) -> Option:
    interval_s = best_interval_s(known, protocol, target_s, max_overhead)
    system = system_of(known, protocol, interval_s)
    overhead = overhead_of(known, protocol, interval_s)
    worst_s = system.recovery_s(system.worst_age_s)
    usable, note = suits(known, protocol)
    if system.load >= 1:
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
        meets_target=target_s is None or worst_s <= target_s,
        meets_overhead=max_overhead is None or overhead <= max_overhead + 1e-12,
    )


def suits(known: Known, protocol: Protocol) -> tuple[bool, str]:
    load = known.rate_per_s / known.capacity_per_s
    logging = f"logging every frame takes {logging_share_of(known):.1%} of the capacity"
    if protocol == "aligned":
        if known.cycles:
            return False, "alignment would deadlock on the feedback edges"
        return True, (
            f"the graph has no cycles and at {load:.0%} load the markers travel quickly, so "
            "alignment is cheap and nothing has to be logged"
        )
    if protocol == "unaligned":
        return True, (
            f"markers overtake what waits, which matters at {load:.0%} load"
            + (" and works on feedback edges" if known.cycles else "")
        )
    if protocol == "uncoordinated":
        if known.cycles:
            return False, "on a cycle checkpoints may be useless and a recovery may fall far back"
        return True, f"one failure stops 1 of {known.shards} shards only; {logging}"
    if not known.cycles:
        return False, "without cycles it never forces a checkpoint: uncoordinated is the same"
    return True, (
        f"one failure stops 1 of {known.shards} shards only and cycles cannot make checkpoints "
        f"useless; {logging}"
    )


def near_optimal(
    known: Known,
    protocol: Protocol,
    interval_s: float,
    target_s: float | None,
    max_overhead: float | None,
) -> tuple[float, float]:
    """The range around an interval that costs at most a tenth more and breaks no more promises."""
    limit = 1.1 * cost_of(known, protocol, interval_s)
    late_s, over = broken_promises(known, protocol, interval_s, target_s, max_overhead)
    good = [interval_s]
    for other_s in intervals_for(known, protocol):
        other_late_s, other_over = broken_promises(known, protocol, other_s, target_s, max_overhead)
        kept = other_late_s <= late_s and other_over <= over
        if kept and cost_of(known, protocol, other_s) <= limit:
            good.append(other_s)
    return min(good), max(good)


def curve_of(known: Known, protocol: Protocol) -> tuple[tuple[float, float, float, float], ...]:
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
