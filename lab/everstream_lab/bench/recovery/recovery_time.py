"""Recovery time: from the kill until latency is back within a tenth of what it was before.

Latency is looked at by when records were due, not by when they came. Right after a kill what is
still in flight comes out as quickly as ever, and nothing comes for a while; by arrival one would
call that recovered at once. By due time there is no gap: a record due in the outage waits until
it is over, and the first records that wait no longer than usual mark the end.
"""

from dataclasses import dataclass

import numpy as np

from everstream.errors import UserError
from everstream_lab.bench.latency import Arrivals, Floats, quantiles

TOLERANCE = 0.1


@dataclass(frozen=True)
class Recovery:
    """How a run came back from one kill."""

    recovery_s: float | None
    """From the kill until the first records with the usual latency came out; None if never."""
    before_s: float
    """Mean latency before the kill."""
    limit_s: float
    """Up to this mean latency a step counts as back."""
    worst_s: float
    """The highest mean latency of a step after the kill."""


def recovery(
    arrivals: Arrivals,
    killed_s: float,
    *,
    step_s: float = 0.1,
    hold_s: float = 0.5,
    before_s: float = 5.0,
    tolerance: float = TOLERANCE,
    slack_s: float = 0.01,
) -> Recovery:
    """Judge one kill at `killed_s` on the wall clock.

    The records due in each `step_s` are taken together. The run is back with the first step at
    the usual latency that is followed by no other for `hold_s`. Usual is at most a tenth above
    the mean of the `before_s` before the kill, or, where the latency of single steps varied by
    more than that even then, at most what 95 of 100 of those steps had; and a difference of
    `slack_s` is none, because a tenth of a few milliseconds is noise. `before_s` must not reach
    back into the start of the run, when everything is still slow.

    A step in which nothing was due is passed over: queries with windows give output in beats.
    Give them a `step_s` as long as the beat.
    """
    earlier = arrivals.between(killed_s - before_s, killed_s)
    if not len(earlier.at_s):
        raise UserError(
            f"nothing came out in the {before_s:g} s before the kill, so there is nothing to "
            "compare with: kill later, or look further back with before_s=."
        )
    mean_s = earlier.latency().mean_s
    _, usual = _by_due(earlier, killed_s - before_s, step_s)
    [varied_s] = quantiles(usual, np.ones(len(usual)), (0.95,))
    limit_s = max(mean_s * (1 + tolerance), mean_s + slack_s, varied_s)
    after = arrivals.due_between(killed_s, np.inf)
    starts, means = _by_due(after, killed_s, step_s)
    recovery_s = None
    for start_s, step_mean_s in zip(starts, means, strict=True):
        held = means[(starts >= start_s) & (starts < start_s + hold_s)]
        seen_long_enough = starts[-1] + step_s >= start_s + hold_s
        if seen_long_enough and (held <= limit_s).all():
            recovery_s = float(start_s - killed_s + step_mean_s)
            break
    worst_s = float(means.max()) if len(means) else float("nan")
    return Recovery(recovery_s, mean_s, limit_s, worst_s)


def _by_due(arrivals: Arrivals, start_s: float, step_s: float) -> tuple[Floats, Floats]:
    """The steps in which records were due, and the mean latency of those records."""
    place = np.floor((arrivals.due_s - start_s) / step_s).astype(np.int64)
    steps, inverse = np.unique(place, return_inverse=True)
    weights = np.bincount(inverse, arrivals.records)
    sums = np.bincount(inverse, arrivals.records * arrivals.latency_s)
    return start_s + steps * step_s, sums / weights
