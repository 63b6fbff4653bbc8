"""The compiled event loop: no object per tuple, all state in arrays.

Events are: a source delivers, a CPU finishes, or the control plane acts (checkpoint, failure,
recovery). The loop always takes the earliest. Everything it knows lives in `State`, so it can
stop after any event: `advance` returns to Python when the window is full, when its budget is
used up (for a progress bar), or when a buffer must grow, and is then simply called again.
"""

from __future__ import annotations

import math

import numba as nb

from everstream_lab.queueing.kernel_control import (
    close_pauses,
    control,
    draw,
    draw_route,
    end_pause,
    next_control,
)
from everstream_lab.queueing.kernel_state import (
    ABOVE_TARGET,
    ARRIVED,
    BASE,
    BUDGET_USED,
    BY_LOAD,
    CURVE_FULL,
    DELIVERED,
    DRAINING,
    DUE_USED,
    FINISHED,
    FIRST_OPEN,
    IN_FLIGHT,
    LATENCY_SUM,
    LOG_FULL,
    LOOSE,
    LOST,
    NOW,
    PAUSES,
    PAUSES_FULL,
    PHASE,
    QUANTILE_BINS,
    QUANTILE_LOWEST_S,
    QUANTILE_STEPS_PER_DECADE,
    QUEUE_FULL,
    READ,
    RUNNING,
    UNPROCESSED,
    UP,
    WRITTEN,
)


@nb.njit(cache=True)
def advance(setting, state, work_rng, failure_rng, budget):  # type: ignore[no-untyped-def]
    """Run until the window is full, the budget of events is used up, or a buffer must grow.

    One long function with the hot arrays in local variables: handing tuples of arrays to
    helpers costs reference counting on every call, which made the loop twenty times slower.
    Each round finds one tuple to move, from wherever, and then moves it at the bottom.
    """
    source_next, source_law, source_to = state.source_next, setting.source_law, setting.source_to
    source_entities, first_cpu = setting.source_entities, setting.first_cpu
    source_due, source_given, until_s = state.source_due, state.source_given, setting.until_s
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
            if until_s < math.inf and event < 0 and count[IN_FLIGHT] == 0:
                open_sources = 0
                for i in range(sources):
                    open_sources += source_next[i] < math.inf
                if open_sources == 0 and (not backlog or count[READ] == count[WRITTEN]):
                    return FINISHED
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
                by_load = source_law[event, 0] == BY_LOAD
                if by_load and source_given[event] + 1 >= source_due.shape[1]:
                    return DUE_USED
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
                if by_load:
                    source_given[event] += 1
                    source_next[event] = source_due[event, source_given[event]]
                else:
                    source_next[event] = at + draw(
                        work_rng, source_law[event, 0], source_law[event, 1], source_law[event, 2]
                    )
                if source_next[event] > until_s:
                    source_next[event] = math.inf
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
