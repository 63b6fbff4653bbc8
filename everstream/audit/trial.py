"""One run of an audit: the request, when its sources may end, and its outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from everstream.audit.comparison import Difference, SinkOutput, compare
from everstream.audit.kill_plan import lasts_s
from everstream.audit.rehearsal import Rehearsal, clear, collected
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.orders import Phase
from everstream.core.plan import Plan
from everstream.engine.faults.kills import DRIVER, Kill
from everstream.pipeline.graph import Kind
from everstream.state.signing import StoreKey, StoreUrl

QUIET_S = 3.0
"""How much longer to wait for a kill after all records had time to flow."""

Counts = Mapping[str, Sequence[int]]
"""Operator -> records in and out."""


class EndGate:
    """Opens the gate when every kill has happened, or when none has for long in a healthy run.

    The gate is a file: the sources, in other processes, check whether it exists.
    """

    def __init__(self, gate: Path, kills: int, patience_s: float) -> None:
        self.gate = gate
        self.delivered: list[Kill] = []
        self._kills = kills
        self._patience_s = patience_s
        self._quiet_since_s: float | None = None

    def on_kill(self, kill: Kill) -> None:
        self.delivered.append(kill)
        self._quiet_since_s = None
        if len(self.delivered) == self._kills:
            self.gate.touch()

    def on_progress(self, phase: Phase, now_s: float) -> None:
        if phase is not Phase.RUNNING:
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s > self._patience_s:
            self.gate.touch()


@dataclass(frozen=True)
class Trial:
    name: str
    purpose: str
    """Shown to the user when it starts."""
    plan: Plan
    store: Path
    rehearsal: Rehearsal
    end_gate: EndGate
    """Receives every kill and the progress, and opens the rehearsal's gate."""
    kills: tuple[str, ...] = ()
    key: StoreKey | None = None
    """Signs the store."""

    @property
    def driver_kills(self) -> int:
        return sum(Kill.parse(kill).of_driver(self.plan) for kill in self.kills)

    def outputs(self) -> dict[str, list[Any]]:
        """Sink -> the records of a finished run."""
        place = StoreUrl(str(self.store), self.key)
        return collected(self.plan.graph, place, self.rehearsal)

    def clear(self) -> None:
        """Remove the audit copies that real sinks wrote."""
        clear(self.plan.graph, self.rehearsal)


@dataclass(frozen=True)
class Trials:
    """Makes the runs of one audit; each has its own store and gate in `folder`."""

    folder: Path
    plan: Plan
    audit_copy: str | None = None
    """Prefix for the labels of audit copies; None: all sinks are replaced."""
    key: StoreKey | None = None
    """Signs the stores."""

    def undisturbed(self) -> Trial:
        return self._trial("undisturbed", "undisturbed", Rehearsal(), patience_s=inf)

    def disturbed(self, number: int, kills: Sequence[str], counts: Counts) -> Trial:
        """Killed with the kills drawn for it. `counts` are those of the undisturbed run."""
        name, purpose = f"disturbed-{number}", f"disturbed, run {number}"
        how = self._slowed(name, len(kills), counts)
        return self._trial(name, purpose, how, patience_s=how.lasts_s + QUIET_S, kills=kills)

    def again(self, counts: Counts) -> Trial:
        """Slowed like the disturbed ones, but not killed: do the outputs differ without kills?"""
        purpose = "the outputs differ: another undisturbed run, to see whether that differs as well"
        how = self._slowed("again", 0, counts)
        # There is nothing to wait for; batches only meet as late as in the runs with kills.
        return self._trial("again", purpose, how, patience_s=how.lasts_s)

    def _trial(
        self, name: str, purpose: str, how: Rehearsal, patience_s: float, kills: Sequence[str] = ()
    ) -> Trial:
        gate = EndGate(self._gate(name), len(kills), patience_s)
        if self.audit_copy is not None:
            how = replace(how, audit_copy=f"{self.audit_copy}-{name}")
        store = self.folder / name
        return Trial(name, purpose, self.plan, store, how, gate, tuple(kills), self.key)

    def _gate(self, name: str) -> Path:
        return self.folder / f"{name}.gate"

    def _slowed(self, name: str, kills: int, counts: Counts) -> Rehearsal:
        sources = self.plan.graph.of_kind(Kind.SOURCE)
        records = tuple((node.name, counts.get(node.name, (0, 0))[1]) for node in sources)
        return Rehearsal(str(self._gate(name)), lasts_s(kills), records)


@dataclass(frozen=True)
class TrialResult:
    """How one run ended, and what it put out if it finished."""

    outcome: str
    """"finished", "stopped", "killed" or "failed"."""
    timed_out: bool = False
    error: str | None = None
    counts: Counts = field(default_factory=dict)
    outputs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    recoveries: Sequence[RecoveryReport] = ()

    @property
    def finished(self) -> bool:
        return self.outcome == "finished"

    @property
    def interrupted(self) -> bool:
        """By Ctrl-C; a run that took too long has failed."""
        return self.outcome in ("stopped", "killed") and not self.timed_out

    @cached_property
    def _comparable(self) -> dict[str, SinkOutput]:
        return {sink: SinkOutput(records) for sink, records in self.outputs.items()}

    def against(self, undisturbed: "TrialResult") -> list[Difference]:
        return [
            compare(sink, expected, self._comparable[sink])
            for sink, expected in undisturbed._comparable.items()
        ]

    def without_outputs(self) -> "TrialResult":
        """What is kept of a run that has been compared: an audit has many."""
        return replace(self, outputs={})


@dataclass(frozen=True)
class Disturbed:
    """A run with kills, and what it put out against the undisturbed one."""

    trial: Trial
    ending: TrialResult
    differences: list[Difference]

    @property
    def delivered(self) -> list[Kill]:
        return self.trial.end_gate.delivered

    def to_json(self) -> dict[str, Any]:
        reports = recovery_of_each(self.delivered, self.ending.recoveries, self.trial.plan)
        asked = [(text, Kill.parse(text)) for text in self.trial.kills]
        return {
            "name": self.trial.name,
            "outcome": self.ending.outcome,
            "error": self.ending.error,
            "sinks": [difference.to_json() for difference in self.differences],
            "kills": [
                {
                    "kill": text,
                    "happened": kill in self.delivered,
                    "recovery": report.to_json() if (report := reports.get(kill)) else None,
                }
                for text, kill in asked
            ],
            "recoveries": [report.to_json() for report in self.ending.recoveries],
        }


def recovery_of_each(
    kills: Sequence[Kill], reports: Sequence[RecoveryReport], plan: Plan
) -> dict[Kill, RecoveryReport]:
    """Kill -> its report, both in the order in which they happened.

    A kill has no report if its process died while the run was still starting.
    """
    left = list(reports)
    recoveries: dict[Kill, RecoveryReport] = {}
    for kill in kills:
        of_driver = kill.of_driver(plan)
        shard = DRIVER if of_driver else str(kill.target(plan))
        for report in left:
            if shard in report.shards and (of_driver or report.injected):
                recoveries[kill] = report
                left.remove(report)
                break
    return recoveries
