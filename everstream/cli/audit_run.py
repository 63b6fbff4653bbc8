"""One run of an audit: supervised like any other, with its gate, its output and its recoveries."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from everstream.bench.audit import Difference, compare
from everstream.bench.kill_plan import lasts_s
from everstream.bench.rehearsal import Rehearsal
from everstream.cli.events import Event, Failed, Fault, Finished, KillDelivered, Progressed
from everstream.cli.run import say_error
from everstream.cli.screen import make_screen
from everstream.cli.summary import show_recoveries
from everstream.cli.supervise import FAILED, USAGE, Supervisor
from everstream.connectors.collect import Collect
from everstream.core.orders import Phase
from everstream.core.plan import Plan
from everstream.core.recovery import RecoveryReport
from everstream.pipeline.batch import records_of
from everstream.pipeline.graph import Kind
from everstream.spark.kills import DRIVER, Kill

if TYPE_CHECKING:
    from everstream.cli.audit import Audit

RESTARTS = 3
"""Failures that are nobody's doing, as in `everstream run`."""
QUIET_S = 3.0
"""After all records had time to flow, wait so much longer for a kill before giving up on it."""


class Gatekeeper:
    """Opens the gate when every kill has happened, or none has for long while all went well."""

    def __init__(self, kills: int, patience_s: float) -> None:
        self.delivered: list[Kill] = []
        self.is_open = kills == 0
        self._kills = kills
        self._patience_s = patience_s
        self._quiet_since_s: float | None = None

    def hear(self, event: Event) -> bool:
        """True when the gate is to be opened now."""
        was_open = self.is_open
        match event:
            case KillDelivered(kill=kill):
                self.delivered.append(kill)
                self._quiet_since_s = None
                self.is_open = was_open or len(self.delivered) == self._kills
            case Progressed(snapshot=snapshot, at_s=at_s):
                if snapshot.phase is not Phase.RUNNING:
                    self._quiet_since_s = None
                elif self._quiet_since_s is None:
                    self._quiet_since_s = at_s
                elif at_s - self._quiet_since_s > self._patience_s:
                    self.is_open = True
        return self.is_open and not was_open


class AuditRun:
    """Runs the pipeline once, with the kills drawn for this run."""

    def __init__(self, audit: "Audit", name: str, kills: list[str], slowed: bool = False) -> None:
        self.name = name
        self.kills = kills
        self.outputs: dict[str, list[Any]] = {}
        self.differences: list[Difference] = []
        self._plan = audit.plan
        self._store = audit.folder / name
        self._gate = audit.folder / f"{name}.gate"
        self._keeper = Gatekeeper(len(kills), lasts_s(len(kills)) + QUIET_S)
        how = Rehearsal()
        if kills or slowed:
            sources = audit.plan.graph.of_kind(Kind.SOURCE)
            counts = audit.undisturbed.counts
            records = tuple((node.name, counts.get(node.name, [0, 0])[1]) for node in sources)
            how = Rehearsal(str(self._gate), lasts_s(len(kills)), records)
        if slowed:
            # Nothing is waited for; only the batches meet as late as in the runs with kills.
            self._keeper = Gatekeeper(1, how.lasts_s)
        drivers = sum(Kill.parse(kill).of_driver(audit.plan) for kill in kills)
        self._supervisor = Supervisor(
            replace(
                audit.options,
                store=str(self._store),
                kills=tuple(kills),
                max_restarts=RESTARTS + drivers,
                rehearsal=how,
            ),
            self._show,
        )

    def run(self, console: Console) -> int:
        """The supervisor's exit code."""
        with make_screen(console) as screen:
            self._screen = screen
            if console.is_terminal:
                self._supervisor.pass_to(screen.passing)
            code = self._supervisor.run()
        show_recoveries(console, self._supervisor.story.recoveries)
        if self.finished:
            self._read_outputs(self._store)
        return code

    def _show(self, event: Event) -> None:
        if self._keeper.hear(event):
            self._gate.touch()
        self._screen.show(event)

    def _read_outputs(self, store: Path) -> None:
        for node in self._plan.graph.of_kind(Kind.SINK):
            batches = Collect().results(self._plan.graph.name, node.name, str(store))
            self.outputs[node.name] = [r for batch in batches for r in records_of(batch)]

    def compare_with(self, undisturbed: "AuditRun") -> None:
        self.differences = [
            compare(sink, expected, self.outputs[sink])
            for sink, expected in undisturbed.outputs.items()
        ]

    @property
    def delivered(self) -> list[Kill]:
        return self._keeper.delivered

    @property
    def finished(self) -> bool:
        return self._supervisor.outcome == "finished"

    @property
    def interrupted(self) -> bool:
        """By Ctrl-C; a run that --timeout stopped has failed."""
        return self._supervisor.outcome in ("stopped", "killed") and not self._supervisor.timed_out

    @property
    def counts(self) -> dict[str, list[int]]:
        end = self._supervisor.story.end
        assert isinstance(end, Finished)
        counts: dict[str, list[int]] = end.result["counts"]
        return counts

    def tell_failure(self) -> int | None:
        """Show why the run failed; the exit code, or None if it was interrupted."""
        end = self._supervisor.story.end
        if isinstance(end, Failed) and end.fault is not Fault.STOPPED:
            say_error(end.text)
            return USAGE if end.fault is Fault.USAGE else FAILED
        if self._supervisor.timed_out:
            say_error(f"{self.name}: the run did not end within --timeout")
            return FAILED
        return None

    def to_json(self) -> dict[str, Any]:
        reports = recovery_of_each(self.delivered, self._supervisor.story.recoveries, self._plan)
        asked = [Kill.parse(kill) for kill in self.kills]
        end = self._supervisor.story.end
        return {
            "name": self.name,
            "outcome": self._supervisor.outcome,
            "error": end.text if isinstance(end, Failed) else None,
            "sinks": [difference.to_json() for difference in self.differences],
            "kills": [
                {
                    "kill": text,
                    "happened": kill in self.delivered,
                    "recovery": report.to_json() if (report := reports.get(kill)) else None,
                }
                for text, kill in zip(self.kills, asked, strict=True)
            ],
            "recoveries": [r.to_json() for r in self._supervisor.story.recoveries],
        }


def recovery_of_each(
    kills: list[Kill], reports: list[RecoveryReport], plan: Plan
) -> dict[Kill, RecoveryReport]:
    """Kill -> its report, both in the order in which they happened.

    A kill has none of its own if its process died while the run was only being put together.
    """
    left = list(reports)
    found: dict[Kill, RecoveryReport] = {}
    for kill in kills:
        of_driver = kill.of_driver(plan)
        who = DRIVER if of_driver else str(kill.target(plan))
        for report in left:
            if who in report.shards and (of_driver or report.injected):
                found[kill] = report
                left.remove(report)
                break
    return found
