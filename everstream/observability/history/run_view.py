"""The run_view: takes the entries of a run, keeps what is worth showing, gives the view.

It does no I/O and its memory is bounded, however long a run goes on. It outlives drivers: a new one
begins with a `run` entry, and what was known of failures, checkpoints and sums before stays. The view
is one JSON object with everything a page shows; `schema.py` says what is in it.
"""

from collections import deque
from typing import Any

from everstream.observability.history.advice import Seen
from everstream.observability.history.entries import Entry
from everstream.observability.history.flow import Flow
from everstream.observability.history.operators import edges_of, operators_of, shards_of, workers_of
from everstream.observability.history.series import Series

VERSION = 1
CHECKPOINTS = 100
FAILURES = 200
NOTES = 200
STALE_S = 15.0
"""Rates older than this are not rates any more."""
URGENT = frozenset({"run", "failure", "kill", "driver_lost", "end", "checkpoint_failed"})

View = dict[str, Any]


class RunView:
    """One store's runs, the newest of them in detail."""

    def __init__(self) -> None:
        self.taken = 0
        """How many entries there were: whoever has seen as many has seen all."""
        self.urgent = 0
        """How many of them nobody should wait for."""
        self.run: Entry | None = None
        self.flow = Flow()
        self.completed = 0
        self.failed_checkpoints = 0
        self.failures_seen = 0
        self.drivers_lost = 0
        self.checkpoints: deque[View] = deque(maxlen=CHECKPOINTS)
        self.failures: dict[str, Entry] = {}
        self.notes: deque[View] = deque(maxlen=NOTES)
        self.last_stable_at: float | None = None
        self.phase = "waiting for workers"
        self.epoch = 0
        self.interval_s: float | None = None
        self._started_at: float | None = None
        self._ended: View | None = None
        self._series = Series()
        self._seen = Seen()
        self._line: dict[str, View] = {}

    def take(self, entry: Entry) -> None:
        """What has happened next. Kinds that are not known, from a newer version, are passed over."""
        self.taken += 1
        self.urgent += entry["kind"] in URGENT
        match entry["kind"]:
            case "run":
                self._begin(entry)
            case "sample":
                self._sample(entry)
            case "checkpoint":
                self._checkpoint(entry)
            case "checkpoint_failed":
                self.failed_checkpoints += 1
                self.checkpoints.append(_failed(entry))
            case "failure":
                self._failure(entry)
            case "note":
                self._note(entry["at"], entry["text"], entry["warning"])
            case "kill":
                where = f"{entry['operator']}:{entry['shard']}"
                self._note(entry["at"], f"killing the process of {where}, as asked for", False)
            case "interval":
                self.interval_s = entry["interval_s"]
            case "driver_lost":
                self.drivers_lost += 1
                self.phase = "the driver is gone"
                self.flow.interrupted()
            case "end":
                self._end(entry)

    @property
    def pipeline(self) -> str:
        return "" if self.run is None else str(self.run["pipeline"])

    @property
    def ended(self) -> View | None:
        return self._ended

    def view(self, now: float) -> View:
        """Everything there is to see."""
        run = self.run or {}
        flow = self.flow
        if self._is_stale(now):
            flow.rising.interrupted()
        return {
            "version": VERSION,
            "pipeline": run.get("pipeline"),
            "store": run.get("store"),
            "engine": run.get("engine"),
            "protocol": run.get("protocol"),
            "interval_s": self.interval_s,
            "phase": self.phase,
            "epoch": self.epoch,
            "started_at": self._started_at,
            "now": round(now, 3),
            "ended": self._ended,
            "drivers_lost": self.drivers_lost,
            "spark_ui": run.get("spark_ui") if self._ended is None else None,
            "actions": False,
            "configuration": run.get("configuration", {}),
            "operators": operators_of(run, flow),
            "edges": edges_of(run, flow),
            "shards": shards_of(run, flow, self.phase, now),
            "workers": workers_of(run, flow),
            "series": self._series.to_json(),
            "latency": {sink: flow.quantiles([sink]) for sink in sorted(flow.latency)},
            "checkpoints": list(self.checkpoints)[::-1],
            "failures": [_shown(failure) for failure in reversed(self.failures.values())],
            "recovery_line": dict(self._line) if run.get("logs") else None,
            "notes": list(self.notes)[::-1],
            "advice": self._seen.advice(self.interval_s),
        }

    def _begin(self, run: Entry) -> None:
        if self.run is not None and self.run["run"] == run["run"]:
            return  # said again, for those who begin to read there
        self.run = run
        self.interval_s = run["interval_s"]
        self.phase = "waiting for workers"
        self._ended = None
        self._started_at = run["at"]
        shards = run["shards"]
        self.flow.shards = {s: said for s, said in self.flow.shards.items() if s in shards}
        self._line = {shard: at for shard, at in self._line.items() if shard in shards}
        self.flow.workers = {}
        self.flow.interrupted()

    def _sample(self, sample: Entry) -> None:
        self.flow.take(sample)
        self.phase, self.epoch = sample["phase"], sample["epoch"]
        operators = (self.run or {}).get("operators", [])
        kinds = {operator["name"]: operator["kind"] for operator in operators}
        flow, shards = self.flow, sample["shards"]
        into = flow.per_s(
            ("out", shard, name)
            for shard, meter in shards.items()
            for name in meter["counts"]
            if kinds.get(name) == "source"
        )
        out = flow.per_s(
            ("in", shard, name)
            for shard, meter in shards.items()
            for name in meter["counts"]
            if kinds.get(name) == "sink"
        )
        paced = any(meter.get("target_per_s") for meter in shards.values())
        workers = sample["workers"]
        self._series.add(
            sample["at"],
            {
                "in_per_s": _rounded(into),
                "out_per_s": _rounded(out),
                **flow.quantiles(flow.latency),
                "cpu": _rounded(flow.per_s(("cpu_s", "worker", worker) for worker in workers), 4),
                "memory_bytes": sum(h["memory_bytes"] or 0 for h in workers.values()) or None,
                "behind": sum(m["behind"] for m in shards.values()) if paced else None,
            },
        )

    def _checkpoint(self, entry: Entry) -> None:
        self.completed += 1
        self.epoch = entry["epoch"]
        self.last_stable_at = entry["at"]
        self._seen.checkpoint(entry)
        shown = ("epoch", "duration_s", "bytes", "slowest", "shards")
        self.checkpoints.append(
            {
                **{name: entry[name] for name in shown},
                "started_at": round(entry["at"] - entry["duration_s"], 3),
                "at": entry["at"],
                "failed": None,
                "forced": sum(bool(shard["forced"]) for shard in entry["shards"]),
            }
        )
        for shard in entry["shards"]:
            known = self._line.get(shard["shard"])
            if known is None or known["number"] != shard["number"]:
                self._line[shard["shard"]] = {"number": shard["number"], "at": entry["at"]}

    def _failure(self, entry: Entry) -> None:
        if entry["id"] not in self.failures:
            self.failures_seen += 1
            self._seen.failure(entry)
        self.failures[entry["id"]] = entry
        if len(self.failures) > FAILURES:
            del self.failures[next(iter(self.failures))]

    def _note(self, at: float, text: str, warning: bool) -> None:
        self.notes.append({"at": at, "text": text, "warning": warning})

    def _end(self, entry: Entry) -> None:
        self._ended = {"outcome": entry["outcome"], "error": entry["error"], "at": entry["at"]}
        self.phase = entry["outcome"]
        self.flow.interrupted()

    def _is_stale(self, now: float) -> bool:
        return self.flow.at is not None and now - self.flow.at > STALE_S


def _failed(entry: Entry) -> View:
    return {
        "epoch": entry["epoch"],
        "started_at": None,
        "at": entry["at"],
        "duration_s": None,
        "bytes": None,
        "failed": entry["reason"],
        "forced": 0,
        "slowest": None,
        "shards": [],
    }


def _shown(failure: Entry) -> View:
    return {name: value for name, value in failure.items() if name != "kind"}


def _rounded(rate: float | None, digits: int = 1) -> float | None:
    return None if rate is None else round(rate, digits)
