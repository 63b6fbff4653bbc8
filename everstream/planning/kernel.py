"""The compiled event loop: no object per tuple, all state in arrays.

Events are: a source delivers, a CPU finishes, or the control plane acts (checkpoint, failure,
recovery). The loop always takes the earliest. Everything it knows lives in `State`, so it can
stop after any event: `advance` returns to Python when the window is full, when its budget is
used up (for a progress bar), or when a buffer must grow, and is then simply called again.
"""

from __future__ import annotations

import math

import numba as nb

from everstream.planning.kernel_state import (
    ABOVE_TARGET,
    ARRIVED,
    BASE,
    BUDGET_USED,
    CHECKPOINT_AT,
    CHECKPOINTS,
    COMMITTING,
    CURVE_FULL,
    DELIVERED,
    DOWN,
    DRAINING,
    FAILURES,
    FINISHED,
    FIRST_OPEN,
    IN_FLIGHT,
    LATENCY_SUM,
    LOG_FULL,
    LOOSE,
    LOST,
    NOW,
    PAUSE_ENDS,
    PAUSES,
    PAUSES_FULL,
    PHASE,
    QUANTILE_BINS,
    QUANTILE_LOWEST_S,
    QUANTILE_STEPS_PER_DECADE,
    QUEUE_FULL,
    READ,
    RECOVERIES,
    RECOVERING,
    REPAIR,
    REPLAYED,
    RUNNING,
    SNAPSHOT,
    STABLE,
    STABLE_AT,
    UNPROCESSED,
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
    """Processing goes on: after a commit with a checkpoint in hand, after a recovery without."""
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


@nb.njit(cache=True)
def advance(setting, state, work_rng, failure_rng, budget):  # type: ignore[no-untyped-def]
    """Run until the window is full, the budget of events is used up, or a buffer must grow.

    One long function with the hot arrays in local variables: handing tuples of arrays to
    helpers costs reference counting on every call, which made the loop twenty times slower.
    Each round finds one tuple to move, from wherever, and then moves it at the bottom.
    """
    source_next, source_law, source_to = state.source_next, setting.source_law, setting.source_to
    source_entities, first_cpu = setting.source_entities, setting.first_cpu
    service_law, sure_next = setting.service_law, setting.sure_next
    cpu_done, cpu_origin, cpu_tag = state.cpu_done, state.cpu_origin, state.cpu_tag
    operator_next, operator_cpu, down = state.operator_next, state.operator_cpu, state.down
    queue_since, queue_origin = state.queue_since, state.queue_origin
    queue_tag, queue_head, queue_length = state.queue_tag, state.queue_head, state.queue_length
    wait_sum, busy_sum, served = state.wait_sum, state.busy_sum, state.served
    log_at, log_to, log_done = state.log_at, state.log_to, state.log_done
    loose_origin, loose_tag, loose_to = state.loose_origin, state.loose_tag, state.loose_to
    histogram = state.histogram
    curve_sum, curve_count, curve_worst = state.curve_sum, state.curve_count, state.curve_worst
    count, clock, flag = state.count, state.clock, state.flag
    backlog, replays, limit = setting.backlog, setting.replays, setting.in_flight_limit
    target_s, step_s, window = setting.target_s, setting.step_s, setting.window
    sources, operators = source_next.size, operator_next.size
    most_at_once = source_entities.max()
    queue_mask, log_mask = queue_since.shape[1] - 1, log_at.size - 1
    # No queue can hold more than all tuples in flight, so only arrivals need to look.
    room = queue_since.shape[1] - most_at_once
    log_room = log_at.size - most_at_once
    curve_ends = curve_sum.size * step_s
    control_at = next_control(state)
    at = clock[NOW]
    batch_left, batch_to = 0, 0
    while count[DELIVERED] < window:
        to, origin, tag = -1, at, 0
        if batch_left > 0:
            batch_left -= 1
            to = batch_to
            count[IN_FLIGHT] += 1
        elif count[LOOSE] > 0:
            count[LOOSE] -= 1
            to = loose_to[count[LOOSE]]
            origin, tag = loose_origin[count[LOOSE]], loose_tag[count[LOOSE]]
        elif (backlog and count[READ] < count[WRITTEN] and count[IN_FLIGHT] < limit
              and flag[PHASE] == RUNNING):  # fmt: skip
            slot = count[READ] & log_mask
            to, origin, tag = log_to[slot], log_at[slot], count[READ] << 1
            count[READ] += 1
            count[IN_FLIGHT] += 1
            if not replays:
                count[BASE] = count[READ]
            if count[READ] == count[WRITTEN] and count[FIRST_OPEN] < count[PAUSES]:
                close_pauses(state, at)
        else:
            if budget <= 0:
                return BUDGET_USED
            budget -= 1
            soonest = control_at
            event = -1
            for i in range(sources):
                if source_next[i] < soonest:
                    soonest = source_next[i]
                    event = i
            for i in range(operators):
                if operator_next[i] < soonest:
                    soonest = operator_next[i]
                    event = sources + i
            if soonest >= curve_ends:
                return CURVE_FULL
            if event >= sources:
                at = soonest
                clock[NOW] = at
                operator = event - sources
                cpu = operator_cpu[operator]
                origin, tag = cpu_origin[cpu], cpu_tag[cpu]
                if queue_length[operator] > 0:
                    slot = queue_head[operator]
                    queue_head[operator] = (slot + 1) & queue_mask
                    queue_length[operator] -= 1
                    wait_sum[operator] += at - queue_since[operator, slot]
                    served[operator] += 1
                    service = draw(work_rng, service_law[operator, 0], service_law[operator, 1],
                                   service_law[operator, 2])  # fmt: skip
                    busy_sum[operator] += service
                    cpu_done[cpu] = at + service
                    cpu_origin[cpu] = queue_origin[operator, slot]
                    cpu_tag[cpu] = queue_tag[operator, slot]
                else:
                    cpu_done[cpu] = math.inf
                best = math.inf
                for i in range(first_cpu[operator], first_cpu[operator + 1]):
                    if cpu_done[i] < best:
                        best = cpu_done[i]
                        operator_cpu[operator] = i
                operator_next[operator] = best
                to = sure_next[operator]
                if to == -2:
                    to = draw_route(setting, work_rng, operator)
            elif event >= 0:
                if backlog:
                    if count[WRITTEN] - count[BASE] > log_room:
                        return LOG_FULL
                elif count[IN_FLIGHT] > room:
                    return QUEUE_FULL
                at = soonest
                clock[NOW] = at
                entities = source_entities[event]
                count[ARRIVED] += entities
                if backlog:
                    for _ in range(entities):
                        slot = count[WRITTEN] & log_mask
                        log_at[slot] = at
                        log_to[slot] = source_to[event]
                        log_done[slot] = False
                        count[WRITTEN] += 1
                elif flag[PHASE] != RUNNING:
                    count[LOST] += entities
                else:
                    batch_left, batch_to = entities, source_to[event]
                source_next[event] = at + draw(
                    work_rng, source_law[event, 0], source_law[event, 1], source_law[event, 2]
                )
                continue
            else:
                if count[PAUSES] + 1 > state.pauses.shape[0]:
                    return PAUSES_FULL
                at = soonest
                clock[NOW] = at
                control(setting, state, failure_rng, at)
                control_at = next_control(state)
                continue
        while to >= 0 and down[to] != UP:
            tag |= 1
            following = sure_next[to]
            to = draw_route(setting, work_rng, to) if following == -2 else following
        if to < 0:
            count[IN_FLIGHT] -= 1
            if flag[DRAINING] == 1 and count[IN_FLIGHT] == 0:
                end_pause(setting, state, at)
                control_at = next_control(state)
            if replays:
                slot = (tag >> 1) & log_mask
                if log_done[slot]:
                    continue
                log_done[slot] = True
            count[DELIVERED] += 1
            count[UNPROCESSED] += tag & 1
            latency = at - origin
            clock[LATENCY_SUM] += latency
            count[ABOVE_TARGET] += latency > target_s
            step = 0
            if latency > QUANTILE_LOWEST_S:
                step = int(math.log10(latency / QUANTILE_LOWEST_S) * QUANTILE_STEPS_PER_DECADE)
                step = min(step, QUANTILE_BINS - 1)
            histogram[step] += 1
            step = int(at / step_s)
            curve_sum[step] += latency
            curve_count[step] += 1
            curve_worst[step] = max(curve_worst[step], latency)
            continue
        idle = -1
        if queue_length[to] == 0:
            for i in range(first_cpu[to], first_cpu[to + 1]):
                if cpu_done[i] == math.inf:
                    idle = i
                    break
        if idle >= 0:
            served[to] += 1
            service = draw(work_rng, service_law[to, 0], service_law[to, 1], service_law[to, 2])
            busy_sum[to] += service
            cpu_done[idle] = at + service
            cpu_origin[idle] = origin
            cpu_tag[idle] = tag
            if at + service < operator_next[to]:
                operator_next[to] = at + service
                operator_cpu[to] = idle
        else:
            slot = (queue_head[to] + queue_length[to]) & queue_mask
            queue_since[to, slot] = at
            queue_origin[to, slot] = origin
            queue_tag[to, slot] = tag
            queue_length[to] += 1
    return FINISHED
