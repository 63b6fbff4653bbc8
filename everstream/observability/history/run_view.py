"""The view of a run: takes its events, keeps what is worth showing, and returns one JSON object.

`RunView` performs no I/O, and its memory is bounded however long a run lasts. It outlives drivers:
a new driver starts with `RunStarted`, and earlier failures, checkpoints and sums are kept. The view
holds everything a page shows; `schema.py` describes it. `Live` lets one thread write a view while
others read it.
"""

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from everstream.errors import InternalError
from everstream.events import (
    CheckpointAborted,
    DriverLost,
    EpochStable,
    IntervalChanged,
    Killing,
    MetricsSampled,
    PlanChanged,
    RecoveryUpdated,
    RunEnded,
    RunEvent,
    RunStarted,
    is_warning,
    sentence,
)
from everstream.observability.history.flow import RunMetrics
from everstream.observability.history.operators import (
    edges_of,
    operators_of,
    rounded,
    shards_of,
    workers_of,
)
from everstream.observability.history.stored import with_plan
from everstream.planning.auto import AutoInterval, AutoSettings, CheckpointSeen, FailureSeen

T = TypeVar("T")

VERSION = 1
CHECKPOINTS = 100
FAILURES = 200
NOTES = 200
STALE_S = 15.0
"""Older rates are no longer shown."""
URGENT = (
    RunStarted,
    PlanChanged,
    RecoveryUpdated,
    Killing,
    DriverLost,
    RunEnded,
    CheckpointAborted,
)
"""Events that are shown and saved at once."""
POINTS = 600
SERIES = ("in_per_s", "out_per_s", "p50_ms", "p95_ms", "p99_ms", "cpu", "memory_bytes", "behind")
CURVE_POINTS = 41
SPREAD = 30.0
"""The advice curve extends by this factor beyond the best and the present interval."""

View = dict[str, Any]


class Series:
    """Columns of equal length, one of them the time."""

    def __init__(self, points: int = POINTS) -> None:
        self._points = points
        self._at: list[float] = []
        self._columns: dict[str, list[float | None]] = {name: [] for name in SERIES}

    def add(self, at: float, figures: Mapping[str, float | None]) -> None:
        self._at.append(round(at, 3))
        for name, column in self._columns.items():
            column.append(figures.get(name))
        if len(self._at) > self._points:
            # Drop every second point of the older half; thinned points are thinned further.
            older = slice(1, self._points // 2, 2)
            del self._at[older]
            for column in self._columns.values():
                del column[older]

    def to_json(self) -> dict[str, list[float] | list[float | None]]:
        return {"at": list(self._at), **{name: list(c) for name, c in self._columns.items()}}


class IntervalCosts:
    """The costs of checkpoints and failures, and the interval's place on the cost curve."""

    def __init__(self) -> None:
        self._planner: AutoInterval | None = None
        self._latest = 0.0

    def checkpoint(self, event: EpochStable) -> None:
        pause_s = max((shard.capture_s for shard in event.shards), default=0.0)
        at = self._in_order(event.at)
        self._at(at).see(CheckpointSeen(at, pause_s, event.duration_s))

    def failure(self, event: RecoveryUpdated) -> None:
        at = self._in_order(event.at)
        self._at(at).see(FailureSeen(at))

    def advice(self, present_s: float | None) -> dict[str, Any] | None:
        """[interval, share of the time it costs] around the best one; None before a checkpoint."""
        planner = self._planner
        if present_s is None or planner is None or not planner.pause_s:
            return None
        pause_s, mtbf_s = planner.pause_s, planner.mtbf_s
        best_s = planner.wanted()[0]
        lowest_s = min(best_s, present_s) / SPREAD
        factor = (max(best_s, present_s) * SPREAD / lowest_s) ** (1 / (CURVE_POINTS - 1))
        intervals = [lowest_s * factor**point for point in range(CURVE_POINTS)]
        curve = [[round(t, 4), _rounded_cost(pause_s / t + t / 2 / mtbf_s)] for t in intervals]
        return {"curve": curve, "present_s": present_s, "best_s": round(best_s, 3)}

    def _in_order(self, at: float) -> float:
        """Clocks may be set back, and a failure becomes known after it has happened."""
        self._latest = max(self._latest, at)
        return self._latest

    def _at(self, at: float) -> AutoInterval:
        if self._planner is None:
            self._planner = AutoInterval(AutoSettings(), started_s=at)
        return self._planner


class RunView:
    """One store's runs, the newest of them in detail."""

    def __init__(self) -> None:
        self.taken = 0
        """The number of events."""
        self.urgent = 0
        """The number of events to show at once."""
        self.run: RunStarted | None = None
        self.flow = RunMetrics()
        self.completed = 0
        self.failed_checkpoints = 0
        self.failures_seen = 0
        self.drivers_lost = 0
        self.checkpoints: deque[View] = deque(maxlen=CHECKPOINTS)
        self.failures: dict[str, RecoveryUpdated] = {}
        self.notes: deque[View] = deque(maxlen=NOTES)
        self.last_stable_at: float | None = None
        self.phase = "waiting for workers"
        self.epoch = 0
        self.interval_s: float | None = None
        self._started_at: float | None = None
        self.ended: View | None = None
        self._series = Series()
        self._costs = IntervalCosts()
        self._line: dict[str, View] = {}

    def take(self, event: RunEvent) -> None:
        self.taken += 1
        self.urgent += isinstance(event, URGENT)
        text = sentence(event)
        if text is not None:
            self.notes.append({"at": event.at, "text": text, "warning": is_warning(event)})
        match event:
            case RunStarted():
                self._begin(event)
            case PlanChanged() if self.run is not None:
                self._take_plan(with_plan(self.run, event))
            case MetricsSampled():
                self._sample(event)
            case EpochStable():
                self._checkpoint(event)
            case CheckpointAborted():
                self.failed_checkpoints += 1
                nothing = dict.fromkeys(("started_at", "duration_s", "bytes", "slowest"))
                failed = {"epoch": event.epoch, "at": event.at, "failed": event.reason}
                self.checkpoints.append({**failed, **nothing, "forced": 0, "shards": []})
            case RecoveryUpdated():
                self._failure(event)
            case IntervalChanged(interval_s=interval_s):
                self.interval_s = interval_s
            case DriverLost():
                self.drivers_lost += 1
                self.phase = "the driver is gone"
                self.flow.interrupted()
            case RunEnded():
                self._end(event)

    @property
    def pipeline(self) -> str:
        return "" if self.run is None else self.run.pipeline

    def view(self, now: float) -> View:
        run, flow = self.run, self.flow
        if flow.at is not None and now - flow.at > STALE_S:
            flow.rising.interrupted()
        return {
            "version": VERSION,
            "pipeline": run.pipeline if run else None,
            "store": run.store if run else None,
            "engine": run.engine if run else None,
            "protocol": run.protocol if run else None,
            "interval_s": self.interval_s,
            "phase": self.phase,
            "epoch": self.epoch,
            "started_at": self._started_at,
            "now": round(now, 3),
            "ended": self.ended,
            "drivers_lost": self.drivers_lost,
            "spark_ui": run.spark_ui if run and self.ended is None else None,
            "actions": False,
            "configuration": run.configuration if run else {},
            "operators": operators_of(run, flow) if run else [],
            "edges": edges_of(run, flow) if run else [],
            "shards": shards_of(run, flow, self.phase, now) if run else [],
            "workers": workers_of(run, flow) if run else [],
            "series": self._series.to_json(),
            "latency": {sink: flow.quantiles([sink]) for sink in sorted(flow.latency)},
            "checkpoints": list(self.checkpoints)[::-1],
            "failures": [_failure_row(failure) for failure in reversed(self.failures.values())],
            "recovery_line": dict(self._line) if run and run.logs else None,
            "notes": list(self.notes)[::-1],
            "advice": self._costs.advice(self.interval_s),
        }

    def _begin(self, run: RunStarted) -> None:
        if self.run is not None and self.run.run == run.run:
            return  # every blob of a history repeats the event
        self.interval_s = run.interval_s
        self._started_at = run.at
        self._take_plan(run)

    def _take_plan(self, run: RunStarted) -> None:
        self.run = run
        self.phase = "waiting for workers"
        self.ended = None
        self.flow.shards = {s: meter for s, meter in self.flow.shards.items() if s in run.shards}
        self._line = {shard: at for shard, at in self._line.items() if shard in run.shards}
        self.flow.workers = {}
        self.flow.interrupted()

    def _sample(self, sample: MetricsSampled) -> None:
        self.flow.take(sample)
        self.phase, self.epoch = sample.phase, sample.epoch
        operators = self.run.operators if self.run is not None else ()
        kinds = {operator.name: operator.kind for operator in operators}
        flow, shards = self.flow, sample.shards
        into, out = (
            flow.per_s(
                (side, shard, name)
                for shard, meter in shards.items()
                for name in meter["counts"]
                if kinds.get(name) == kind
            )
            for side, kind in (("out", "source"), ("in", "sink"))
        )
        paced = any(meter.get("target_per_s") for meter in shards.values())
        workers = sample.workers
        self._series.add(
            sample.at,
            {
                "in_per_s": rounded(into),
                "out_per_s": rounded(out),
                **flow.quantiles(flow.latency),
                "cpu": rounded(flow.per_s(("cpu_s", "worker", worker) for worker in workers), 4),
                "memory_bytes": sum(h["memory_bytes"] or 0 for h in workers.values()) or None,
                "behind": sum(m["behind"] for m in shards.values()) if paced else None,
            },
        )

    def _checkpoint(self, event: EpochStable) -> None:
        self.completed += 1
        self.epoch = event.epoch
        self.last_stable_at = event.at
        self._costs.checkpoint(event)
        shards = [asdict(shard) for shard in event.shards]
        for shown in shards:
            del shown["spilled"]
        self.checkpoints.append(
            {
                "epoch": event.epoch,
                "duration_s": event.duration_s,
                "bytes": event.bytes,
                "slowest": event.slowest,
                "shards": shards,
                "started_at": round(event.at - event.duration_s, 3),
                "at": event.at,
                "failed": None,
                "forced": sum(shard.forced for shard in event.shards),
            }
        )
        for shard in event.shards:
            known = self._line.get(shard.shard)
            if known is None or known["number"] != shard.number:
                self._line[shard.shard] = {"number": shard.number, "at": event.at}

    def _failure(self, event: RecoveryUpdated) -> None:
        if event.id not in self.failures:
            self.failures_seen += 1
            self._costs.failure(event)
        self.failures[event.id] = event
        if len(self.failures) > FAILURES:
            del self.failures[next(iter(self.failures))]

    def _end(self, event: RunEnded) -> None:
        self.ended = {"outcome": event.outcome, "error": event.error, "at": event.at}
        self.phase = event.outcome
        self.flow.interrupted()


def _failure_row(event: RecoveryUpdated) -> View:
    return {**asdict(event), "shards": list(event.shards), "went_back": list(event.went_back)}


def _rounded_cost(cost: float) -> float:
    return round(cost, max(2, 4 - math.floor(math.log10(cost)))) if cost > 0 else 0.0


class Live:
    """The current view of a run, for any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.run_view = RunView()
        self._clock = clock
        self._lock = threading.Lock()
        self._broken: InternalError | None = None

    def take(self, event: RunEvent) -> None:
        """Never fails: a view must not end a run. Errors are raised when the view is read."""
        with self._lock:
            if self._broken is not None:
                return
            try:
                self.run_view.take(event)
            except Exception:
                self._broken = InternalError(f"the view of the run broke: {traceback.format_exc()}")

    def take_all(self, events: Iterable[RunEvent]) -> int:
        """Returns how many there were."""
        count = 0
        for event in events:
            self.take(event)
            count += 1
        return count

    def view(self) -> View:
        return self.reading(lambda run_view: run_view.view(self._clock()))

    def reading(self, read: Callable[[RunView], T]) -> T:
        """The result of `read` on the view, while no event changes it."""
        with self._lock:
            if self._broken is not None:
                raise self._broken
            return read(self.run_view)

    @property
    def event_counts(self) -> tuple[int, int]:
        """The number of events, and how many of them were urgent."""
        return self.run_view.taken, self.run_view.urgent
