"""The control plane of the compiled kernel: checkpoints, failures, recoveries, rollbacks.

These run a few times per simulated minute; the event loop in `kernel` runs millions of times
and calls them when `next_control` is due.
"""

from __future__ import annotations

import math

import numba as nb

from everstream_lab.queueing.kernel_state import (
    BASE,
    CHECKPOINT_AT,
    CHECKPOINTS,
    COMMITTING,
    DOWN,
    DRAINING,
    FAILURES,
    FIRST_OPEN,
    IN_FLIGHT,
    LOOSE,
    PAUSE_ENDS,
    PAUSES,
    PHASE,
    READ,
    RECOVERIES,
    RECOVERING,
    REPAIR,
    REPLAYED,
    RUNNING,
    SNAPSHOT,
    STABLE,
    STABLE_AT,
    UP,
    WRITTEN,
)


@nb.njit(cache=True)
def draw(rng, kind, first, second):  # type: ignore[no-untyped-def]
    if kind == 1.0:
        return max(0.0, rng.normal(first, second))
    if kind == 2.0:
        return rng.exponential(first)
    if kind == 0.0:
        return first
    if kind == 3.0:
        return rng.uniform(first, second)
    if kind == 4.0:
        return rng.lognormal(first, second)
    if kind == 5.0:
        return rng.gamma(first, second)
    return float(rng.poisson(first))


@nb.njit(cache=True)
def draw_route(setting, rng, operator):  # type: ignore[no-untyped-def]
    """The operator a tuple goes to next, by chance; -1 when it leaves."""
    chance = rng.random()
    for i in range(setting.route_start[operator], setting.route_start[operator + 1]):
        if chance < setting.route_up_to[i]:
            return setting.route_to[i]
    return -1


@nb.njit(cache=True)
def evict(setting, state, operator):  # type: ignore[no-untyped-def]
    """Empty an operator: its CPUs stop and its queue is gone."""
    for cpu in range(setting.first_cpu[operator], setting.first_cpu[operator + 1]):
        state.cpu_done[cpu] = math.inf
    state.operator_next[operator] = math.inf
    state.queue_length[operator] = 0


@nb.njit(cache=True)
def let_loose(setting, state, operator):  # type: ignore[no-untyped-def]
    """Discard: an operator fails; the event loop sends what it held on without it."""
    loose = state.count[LOOSE]
    for cpu in range(setting.first_cpu[operator], setting.first_cpu[operator + 1]):
        if state.cpu_done[cpu] < math.inf:
            state.loose_origin[loose] = state.cpu_origin[cpu]
            state.loose_tag[loose] = state.cpu_tag[cpu]
            state.loose_to[loose] = operator
            loose += 1
    mask = state.queue_since.shape[1] - 1
    for i in range(state.queue_length[operator]):
        slot = (state.queue_head[operator] + i) & mask
        state.loose_origin[loose] = state.queue_origin[operator, slot]
        state.loose_tag[loose] = state.queue_tag[operator, slot]
        state.loose_to[loose] = operator
        loose += 1
    state.count[LOOSE] = loose
    evict(setting, state, operator)


@nb.njit(cache=True)
def open_pause(state, kind, at, ends, replayed):  # type: ignore[no-untyped-def]
    row = state.pauses[state.count[PAUSES]]
    row[0] = kind
    row[1] = at
    row[2] = ends
    row[3] = math.nan
    row[4] = replayed
    row[5] = 0
    state.count[PAUSES] += 1


@nb.njit(cache=True)
def close_pauses(state, at):  # type: ignore[no-untyped-def]
    """Nothing waits at the source any more: every pause so far has been caught up."""
    while state.count[FIRST_OPEN] < state.count[PAUSES]:
        state.pauses[state.count[FIRST_OPEN], 3] = at
        state.count[FIRST_OPEN] += 1


@nb.njit(cache=True)
def renew_failures(setting, state, rng, until):  # type: ignore[no-untyped-def]
    """A recovery restarts every node: what would have failed before its end starts a fresh gap."""
    law = setting.failure_law
    for i in range(state.next_failure.size):
        repaired = setting.up_time and state.down[setting.failing[i]] == REPAIR
        if state.next_failure[i] < until or repaired:
            state.next_failure[i] = until + draw(rng, law[0], law[1], law[2])


@nb.njit(cache=True)
def begin_checkpoint(setting, state, rng, at):  # type: ignore[no-untyped-def]
    count, clock = state.count, state.clock
    clock[CHECKPOINT_AT] = math.inf
    state.flag[PHASE] = COMMITTING
    ends = at + setting.commit_s
    if setting.backlog:
        count[SNAPSHOT] = count[READ]
    else:
        failed = 0
        for operator in range(state.down.size):
            if state.down[operator] == DOWN:
                state.down[operator] = REPAIR
                failed += 1
        if failed > 0:
            count[RECOVERIES] += failed
            ends += setting.recovery_s * (failed if setting.one_by_one else 1)
            renew_failures(setting, state, rng, ends)
    open_pause(state, 0 if setting.backlog or ends == at + setting.commit_s else 1, at, ends, 0)
    clock[PAUSE_ENDS] = ends


@nb.njit(cache=True)
def end_pause(setting, state, at):  # type: ignore[no-untyped-def]
    """Processing resumes: after a commit with a new checkpoint, after a recovery without."""
    count, clock, flag = state.count, state.clock, state.flag
    clock[PAUSE_ENDS] = math.inf
    if setting.backlog and flag[PHASE] == COMMITTING:
        if count[IN_FLIGHT] > 0:
            flag[DRAINING] = 1
            return
        clock[STABLE_AT] = at + setting.upload_s
    flag[DRAINING] = 0
    if flag[PHASE] == COMMITTING:
        count[CHECKPOINTS] += 1
    for operator in range(state.down.size):
        if state.down[operator] == REPAIR:
            state.down[operator] = UP
    flag[PHASE] = RUNNING
    clock[CHECKPOINT_AT] = at + setting.interval_s
    row = state.pauses[count[PAUSES] - 1]
    row[2] = at
    row[5] = count[WRITTEN] - count[READ]
    if setting.backlog and row[5] == 0:
        close_pauses(state, at)


@nb.njit(cache=True)
def roll_back(setting, state, at):  # type: ignore[no-untyped-def]
    """Backlog: every operator loses its work and the source rewinds to the stable checkpoint."""
    count, clock, flag = state.count, state.clock, state.flag
    if flag[PHASE] == COMMITTING:
        state.pauses[count[PAUSES] - 1, 2] = at
    for operator in range(state.down.size):
        evict(setting, state, operator)
        state.down[operator] = UP
    count[IN_FLIGHT] = 0
    replayed = count[READ] - count[STABLE]
    count[REPLAYED] += replayed
    count[READ] = count[STABLE]
    count[RECOVERIES] += 1
    flag[PHASE] = RECOVERING
    flag[DRAINING] = 0
    clock[CHECKPOINT_AT] = math.inf
    clock[STABLE_AT] = math.inf
    clock[PAUSE_ENDS] = at + setting.detection_s + setting.recovery_s
    open_pause(state, 1, at, clock[PAUSE_ENDS], replayed)


@nb.njit(cache=True)
def fail(setting, state, rng, which, at):  # type: ignore[no-untyped-def]
    """One clock has run out: its operator fails, or all of them if they share one clock."""
    law = setting.failure_law
    between = draw(rng, law[0], law[1], law[2])
    state.next_failure[which] = math.inf if setting.up_time else at + between
    first, last = which, which + 1
    if setting.shared_clock:
        first, last = 0, setting.failing.size
    struck = 0
    for i in range(first, last):
        operator = setting.failing[i]
        if state.down[operator] == UP:
            struck += 1
            state.down[operator] = DOWN
            if not setting.backlog:
                let_loose(setting, state, operator)
    state.count[FAILURES] += struck
    if setting.backlog and struck > 0:
        roll_back(setting, state, at)
        for i in range(first, last):
            state.down[setting.failing[i]] = REPAIR
        renew_failures(setting, state, rng, state.clock[PAUSE_ENDS])


@nb.njit(cache=True)
def control(setting, state, failure_rng, at):  # type: ignore[no-untyped-def]
    """Perform what the control plane had planned for this moment."""
    count, clock = state.count, state.clock
    if clock[STABLE_AT] <= at:
        clock[STABLE_AT] = math.inf
        count[STABLE] = count[SNAPSHOT]
        count[BASE] = count[STABLE]
    elif clock[PAUSE_ENDS] <= at:
        end_pause(setting, state, at)
    elif clock[CHECKPOINT_AT] <= at:
        if clock[STABLE_AT] < math.inf:
            # One checkpoint at a time: wait until the one before is stable.
            clock[CHECKPOINT_AT] = clock[STABLE_AT]
        else:
            begin_checkpoint(setting, state, failure_rng, at)
    else:
        for which in range(state.next_failure.size):
            if state.next_failure[which] <= at:
                fail(setting, state, failure_rng, which, at)
                return


@nb.njit(cache=True)
def next_control(state):  # type: ignore[no-untyped-def]
    clock = state.clock
    soonest = min(clock[CHECKPOINT_AT], clock[PAUSE_ENDS], clock[STABLE_AT])
    for which in range(state.next_failure.size):
        soonest = min(soonest, state.next_failure[which])
    return soonest
