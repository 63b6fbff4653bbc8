"""Arrivals as a run would have noted them, made by hand."""

import numpy as np

from everstream_lab.bench.latency import Arrivals


def steady(latency_s: float, seconds: float, rate: int = 1_000) -> Arrivals:
    due_s = np.arange(int(seconds * rate)) / rate
    wobble = 1 + 0.02 * np.sin(np.arange(len(due_s)) / 7)
    return Arrivals(due_s + latency_s * wobble, due_s, np.ones(len(due_s)))


def with_outage(arrivals: Arrivals, killed_s: float, back_s: float, speed: float) -> Arrivals:
    """Nothing comes between the kill and `back_s`; then what waits comes at `speed` times the
    rate. What had been in flight at the kill still comes."""
    at_s = arrivals.at_s.copy()
    waits = at_s >= killed_s
    queue = np.flatnonzero(waits)
    apart_s = (arrivals.due_s[1] - arrivals.due_s[0]) / speed
    earliest = back_s + np.arange(len(queue)) * apart_s
    at_s[queue] = np.maximum(at_s[queue], earliest)
    order = np.argsort(at_s, kind="stable")
    return Arrivals(at_s[order], arrivals.due_s[order], arrivals.records[order])
