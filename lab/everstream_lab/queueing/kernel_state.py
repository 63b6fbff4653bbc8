"""What the compiled kernel works on: named slots and two tuples of arrays.

`KernelSettings` does not change during a run; `State` does, in place, so that the kernel can stop
after any event and be called again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Array = Any

# Distribution kinds, in the order of `KINDS`.
KINDS = ("constant", "normal", "exponential", "uniform", "lognormal", "gamma", "poisson")

# Why `advance` came back.
FINISHED, BUDGET_USED, QUEUE_FULL, LOG_FULL, CURVE_FULL, PAUSES_FULL, DUE_USED = range(7)

BY_LOAD = -1.0
"""In place of the kind of a distribution: the source delivers when `source_due` says."""

# Slots of State.count.
(DELIVERED, ARRIVED, UNPROCESSED, LOST, REPLAYED, CHECKPOINTS, FAILURES, RECOVERIES, IN_FLIGHT,
 ABOVE_TARGET, PAUSES, FIRST_OPEN, READ, WRITTEN, SNAPSHOT, STABLE, BASE, LOOSE,
) = range(18)  # fmt: skip
COUNTS = 18

# Slots of State.clock: when the control plane acts next, and what it waits for.
NOW, CHECKPOINT_AT, PAUSE_ENDS, STABLE_AT, LATENCY_SUM = range(5)
CLOCKS = 5

# State.flag: what the system is doing.
PHASE, DRAINING = range(2)
RUNNING, COMMITTING, RECOVERING = range(3)

# State.down: an operator works, has failed, or is under repair.
UP, DOWN, REPAIR = range(3)

QUANTILE_STEPS_PER_DECADE = 50
QUANTILE_LOWEST_S = 1e-7
QUANTILE_BINS = 13 * QUANTILE_STEPS_PER_DECADE


class KernelSettings(NamedTuple):
    """What does not change during a run."""

    backlog: bool
    replays: bool
    window: int  # tuples; a window of time has no limit here
    until_s: float  # when sources stop delivering; infinity for a window of tuples
    interval_s: float
    commit_s: float
    upload_s: float
    recovery_s: float
    detection_s: float
    one_by_one: bool
    up_time: bool
    shared_clock: bool
    in_flight_limit: int
    target_s: float
    step_s: float
    source_to: Array
    source_law: Array  # kind, first, second
    source_entities: Array
    first_cpu: Array  # of operator j: first_cpu[j] .. first_cpu[j + 1]
    service_law: Array
    sure_next: Array  # the only operator that follows, -1 for the way out, -2 to draw
    route_start: Array  # routes of operator j: route_start[j] .. route_start[j + 1]
    route_to: Array
    route_up_to: Array  # cumulative probability
    failing: Array
    failure_law: Array


class State(NamedTuple):
    """What changes, each piece an array so that it is changed in place."""

    source_next: Array
    source_due: Array  # [source, number]: when a source that follows a load delivers
    source_given: Array  # how often each has delivered
    cpu_done: Array  # infinity: idle
    cpu_origin: Array
    cpu_tag: Array
    operator_next: Array  # earliest completion among its CPUs
    operator_cpu: Array  # and whose it is
    queue_since: Array  # [operator, slot], a ring
    queue_origin: Array
    queue_tag: Array
    queue_head: Array
    queue_length: Array
    down: Array
    wait_sum: Array
    busy_sum: Array
    served: Array
    next_failure: Array
    log_at: Array  # backlog: arrival time, entry operator and delivered flag by sequence number
    log_to: Array
    log_done: Array
    count: Array
    clock: Array
    flag: Array
    histogram: Array
    curve_sum: Array
    curve_count: Array
    curve_worst: Array
    loose_origin: Array  # what a failed operator held, on its way round it
    loose_tag: Array
    loose_to: Array
    pauses: Array  # kind, start, end, caught up, replayed, backlog
