"""What each checkpoint protocol was measured to cost, read from what `everstream bench protocols` wrote.

Costs at full speed are differences of the time per record between the best rounds of two ways to
checkpoint. A difference that is lost in the noise of the machine, or below zero, counts as nothing.
Figures that a file does not have come from the measurement that is built in, and are named.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from everstream.core.registry import PROTOCOLS
from everstream.pipeline.checkpointing import CommunicationInduced
from everstream.planning.measured import RunResultError, list_at, mapping_at, number_at, parse_json

_LOGGING = [protocol.name for protocol in PROTOCOLS.values() if protocol.logs]
_INDUCED = [p.name for p in PROTOCOLS.values() if isinstance(p.choice, CommunicationInduced)]
_BUILT_IN = "built_in_costs.json"


@dataclass(frozen=True)
class Costs:
    """Measured on the queries of the benchmark. By protocol where protocols differ."""

    source: str
    """Where and when it was measured."""
    stands_still_s: Mapping[str, float]
    """By protocol without logs: what a checkpoint of next to no state costs at full speed."""
    log_s_per_byte: Mapping[str, float]
    """By protocol with logs: the time to log a byte of a record."""
    vectors_s_per_record: Mapping[str, float]
    """By induced protocol, on a cycle: the time that what rides along takes."""
    forced: Mapping[str, float]
    """By induced protocol, on a cycle: forced checkpoints for each that the timer asked for."""
    went_back: Mapping[str, float]
    """The share of the shards that went back after a kill."""
    rollback: Mapping[str, float]
    """On a cycle: the age, in intervals, of the oldest state that a shard rolled back to."""
    restart_s: Mapping[str, float]
    """From a kill until a small state was restored."""
    from_built_in: tuple[str, ...] = ()
    """The figures that the file did not have."""

    @property
    def lost_in_noise(self) -> list[str]:
        """What was measured and did not show: it counts as nothing."""
        still = [f"standing still ({name})" for name, s in self.stands_still_s.items() if not s]
        vectors = [f"vectors ({name})" for name, s in self.vectors_s_per_record.items() if not s]
        return still + vectors

    def __str__(self) -> str:
        text = f"measured: {self.source}"
        if self.from_built_in:
            text += f"; not in it, from the built-in one: {', '.join(self.from_built_in)}"
        if self.lost_in_noise:
            text += f"; lost in its noise and counted as nothing: {', '.join(self.lost_in_noise)}"
        return text


@cache
def built_in() -> Costs:
    """The measurement that comes with the package."""
    text = resources.files("everstream.planning").joinpath(_BUILT_IN).read_text(encoding="utf-8")
    return parse_costs(json.loads(text), "the measurement that is built in")


def read_costs(path: str | Path) -> Costs:
    """Costs from a file of `everstream bench protocols`; what it lacks is taken from the built-in."""
    costs = parse_costs(parse_json(path), str(path))
    missing: list[str] = []
    filled: dict[str, Mapping[str, float]] = {}
    for field in fields(Costs):
        known, own = getattr(built_in(), field.name), getattr(costs, field.name)
        if isinstance(own, Mapping):
            filled[field.name] = {**known, **own}
            missing += [f"{field.name} of {name}" for name in known if name not in own]
    whole: dict[str, Any] = {**filled, "from_built_in": tuple(missing)}
    return replace(costs, **whole)


def parse_costs(data: object, name: str) -> Costs:
    """Check and take apart what the benchmark wrote."""
    body = mapping_at(data, name, "the whole file")
    if not any(key in body for key in ("runs", "costs")):
        raise RunResultError(
            f"{name} has neither runs nor costs: give the file that `everstream bench protocols "
            "--json` wrote"
        )
    cyclic = [str(query) for query in list_at(body, "cyclic", name)]
    entries = enumerate(list_at(body, "runs", name))
    runs = [_Run.parse(entry, f"{name}: runs[{i}]") for i, entry in entries]
    runs = [run for run in runs if not run.in_memory and run.of_tasks]
    on_cycle = [run for run in runs if run.query in cyclic]
    run_s = number_at(body, "run_s", name) if "run_s" in body else 0.0
    rates = _Rates.parse(body.get("costs"), cyclic, name)
    return Costs(
        source=_source(body, name),
        stands_still_s=rates.stands_still_s() if rates else {},
        log_s_per_byte=rates.log_s_per_byte(runs, run_s) if rates else {},
        vectors_s_per_record=rates.vectors_s_per_record() if rates else {},
        forced=_middle((run for run in on_cycle if run.protocol in _INDUCED), "forced_share"),
        went_back=_middle(runs, "went_back"),
        rollback=_middle(on_cycle, "rollback"),
        restart_s=_middle(runs, "restore_s"),
    )


@dataclass(frozen=True)
class _Run:
    """One run of the benchmark, as far as planning goes. None where there was no kill."""

    query: str
    protocol: str
    in_memory: bool
    of_tasks: bool
    """Not of the other engine, whose tasks come and go."""
    input_per_s: float
    log_bytes: float
    forced_share: float | None
    went_back: float | None
    rollback: float | None
    restore_s: float | None

    @classmethod
    def parse(cls, data: object, where: str) -> _Run:
        run = mapping_at(data, where, "a run")
        cell = mapping_at(run.get("cell"), where, "cell")
        interval_s, regular = number_at(cell, "interval_s", where), number_at(run, "regular", where)
        measured = {
            key: number_at(run, key, where) if run.get(key) is not None else None
            for key in ("went_back", "shards", "rollback_s", "restore_s")
        }
        back, shards, rollback_s = measured["went_back"], measured["shards"], measured["rollback_s"]
        return cls(
            str(cell.get("query")),
            str(cell.get("protocol")),
            cell.get("log") == "memory",
            cell.get("engine", "tasks") == "tasks",
            number_at(run, "input_per_s", where),
            number_at(run, "log_bytes", where),
            number_at(run, "forced", where) / regular if regular else None,
            back / shards if back is not None and shards else None,
            rollback_s / interval_s if rollback_s is not None and interval_s else None,
            measured["restore_s"],
        )


@dataclass(frozen=True)
class _Rates:
    """The best rate at full speed of each protocol, without a cycle and on one."""

    every_s: float
    acyclic_query: str
    acyclic: Mapping[str, float]
    on_cycle: Mapping[str, float]

    @classmethod
    def parse(cls, data: object, cyclic: Iterable[str], name: str) -> _Rates | None:
        if data is None:
            return None
        where = f"{name}: costs"
        costs = mapping_at(data, name, "costs")
        by_way = mapping_at(costs.get("records_per_s"), where, "records_per_s")
        best: dict[str, dict[str, float]] = {}
        for way in by_way:
            query, _, protocol = way.partition("/")
            rounds = {str(i): rate for i, rate in enumerate(list_at(by_way, way, where))}
            rates = [number_at(rounds, key, f"{where}: {way}") for key in rounds]
            if protocol in PROTOCOLS and any(rates):
                best.setdefault(query, {})[protocol] = max(rates)
        every_s = number_at(costs, "every_s", where) if "every_s" in costs else 1.0
        straight = [query for query in best if query not in cyclic]
        round_trips = [query for query in best if query in cyclic]
        return cls(
            every_s,
            straight[0] if straight else "",
            best[straight[0]] if straight else {},
            best[round_trips[0]] if round_trips else {},
        )

    def stands_still_s(self) -> dict[str, float]:
        """The share of the time that is lost, times the time between two checkpoints."""
        without = self.acyclic.get("none")
        return {
            name: max(0.0, 1 - rate / without) * self.every_s
            for name, rate in self.acyclic.items()
            if without and name not in ("none", *_LOGGING)
        }

    def log_s_per_byte(self, runs: Iterable[_Run], run_s: float) -> dict[str, float]:
        """Against aligned checkpoints, by the bytes that paced runs of the same query logged.

        Without a cycle all protocols with logs do the same.
        """
        sizes = [
            run.log_bytes / (run.input_per_s * run_s)
            for run in runs
            if run.query == self.acyclic_query and run.log_bytes and run.input_per_s * run_s
        ]
        if not sizes or not {"uncoordinated", "aligned"} <= set(self.acyclic):
            return {}
        longer_s = _longer_s(self.acyclic, "uncoordinated", "aligned")
        return dict.fromkeys(_LOGGING, longer_s / statistics.median(sizes))

    def vectors_s_per_record(self) -> dict[str, float]:
        return {
            name: _longer_s(self.on_cycle, name, "uncoordinated")
            for name in _INDUCED
            if {name, "uncoordinated"} <= set(self.on_cycle)
        }


def _longer_s(rates: Mapping[str, float], slow: str, fast: str) -> float:
    """How much longer one of them takes for a record."""
    return max(0.0, 1 / rates[slow] - 1 / rates[fast])


def _middle(runs: Iterable[_Run], figure: str) -> dict[str, float]:
    samples: dict[str, list[float]] = {}
    for run in runs:
        value = getattr(run, figure)
        if value is not None and run.protocol in PROTOCOLS:
            samples.setdefault(run.protocol, []).append(value)
    return {name: statistics.median(values) for name, values in samples.items()}


def _source(body: Mapping[str, Any], name: str) -> str:
    machine = mapping_at(body.get("machine", {}), name, "machine")
    facts = [f"{machine['cores']} cores"] if "cores" in machine else []
    facts += [str(body["date"])] if "date" in body else []
    return f"{name} ({', '.join(facts)})" if facts else name
