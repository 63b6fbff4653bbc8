"""Puts together what advice rests on: given beats measured beats assumed.

What is assumed is named, so that the advice can say how sure it is.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace

from everstream.planning.measured import Measured
from everstream.planning.protocol_costs import Costs, built_in
from everstream.planning.units import show_duration
from everstream.planning.weighing import Known

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
    """All that is needed: what is not known is assumed, and named."""
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
