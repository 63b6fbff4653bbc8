"""The plan of an audit: one undisturbed run, then runs with a few kills each, then the verdict.

This module decides which runs there are and what they prove. A `AuditRunner` performs them and shows their
progress: the command line has one with a supervisor, which outlives killed drivers.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from everstream.audit.comparison import Difference
from everstream.audit.kill_plan import KillSchedule, targets_of
from everstream.audit.rehearsal import Rehearsal, rehearsed
from everstream.audit.trial import Disturbed, Trial, TrialResult, Trials
from everstream.core.plan import Plan, make_plan
from everstream.pipeline.checkpointing import EngineName
from everstream.pipeline.stream import Pipeline
from everstream.state.signing import StoreKey

MAX_EXTRA_ROUNDS = 3
"""Further runs for kills that did not happen in theirs."""


class AuditRunner(Protocol):
    """Where an audit runs its pipeline."""

    def perform(self, trial: Trial) -> TrialResult:
        """Run the pipeline as the trial describes, and report its progress to the trial's end_gate."""

    def drawn(self, rounds: list[list[str]]) -> None:
        """These kills will be tried, one list per run."""

    def drawn_instead(self, missing: int, kills: list[str]) -> None:
        """`missing` kills did not happen; these replace them."""


@dataclass
class Findings:
    plan: Plan
    seed: int
    kills: int
    """How many were asked for."""
    undisturbed: TrialResult
    disturbed: list[Disturbed] = field(default_factory=list)
    again: list[Difference] | None = None
    """How a second undisturbed run differs, if that had to be seen."""

    @property
    def interrupted(self) -> bool:
        """There is no verdict."""
        return any(run.ending.interrupted for run in self.disturbed)

    @property
    def failed(self) -> bool:
        """A disturbed run did not come to its end."""
        return any(not run.ending.finished for run in self.disturbed)

    @property
    def happened(self) -> int:
        return sum(len(run.delivered) for run in self.disturbed)

    @property
    def lost(self) -> int:
        return sum(d.verdict.lost for run in self.disturbed for d in run.differences)

    @property
    def duplicated(self) -> int:
        return sum(d.verdict.duplicated for run in self.disturbed for d in run.differences)

    @property
    def exact(self) -> bool:
        return self.lost == 0 and self.duplicated == 0

    @property
    def passed(self) -> bool:
        """Exact, and that means something: there were kills, and every run came to its end."""
        return self.exact and self.happened > 0 and not self.failed

    @property
    def expected(self) -> dict[str, int]:
        """Sink -> records of an undisturbed run."""
        return {sink: len(records) for sink, records in self.undisturbed.outputs.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.plan.graph.name,
            "seed": self.seed,
            "kills_asked": self.kills,
            "kills_happened": self.happened,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "exact": self.exact,
            "plan": [list(run.trial.kills) for run in self.disturbed],
            "expected": self.expected,
            "runs": [run.to_json() for run in self.disturbed],
            "undisturbed_again": self.again and [one.to_json() for one in self.again],
        }


@dataclass
class Audit:
    """One audit of one pipeline; `folder` is for its stores and gates."""

    pipeline: Pipeline
    stage: AuditRunner
    folder: Path
    kills: int
    seed: int
    drivers: bool = False
    """Kill the driver now and then, too."""
    engine: EngineName = "tasks"
    audit_copy: str | None = None
    """Put sinks to the test that can write an audit copy, under labels that begin with this."""
    key: StoreKey | None = None
    """Signs the stores."""

    def run(self) -> Findings:
        how = Rehearsal(audit_copy=self.audit_copy)
        plan = make_plan(rehearsed(self.pipeline, how), 1)
        trials = Trials(self.folder, plan, self.audit_copy, self.key)
        undisturbed = self._perform(trials.undisturbed())
        findings = Findings(plan, self.seed, self.kills, undisturbed)
        if undisturbed.finished:
            self._disturb(trials, findings)
            if not findings.exact and not findings.interrupted:
                # Was it the kills? Slowed in the same way but not killed, it may differ, too.
                again = self._perform(trials.again(undisturbed.counts))
                if again.finished:
                    findings.again = again.against(undisturbed)
        return findings

    def _perform(self, trial: Trial) -> TrialResult:
        try:
            return self.stage.perform(trial)
        finally:
            trial.clear()

    def _disturb(self, trials: Trials, findings: Findings) -> None:
        """Runs with kills, until as many have happened as were asked for or a run fails."""
        counts = findings.undisturbed.counts
        draw = KillSchedule(targets_of(findings.plan, counts, self.drivers, self.engine), self.seed)
        rounds = draw.rounds(self.kills)
        self.stage.drawn(rounds)
        planned = len(rounds)
        for number in range(1, planned + MAX_EXTRA_ROUNDS + 1):
            if number > planned:
                missing = self.kills - findings.happened
                if not missing or not findings.disturbed[-1].delivered:
                    return
                rounds.append(draw.round(min(missing, len(rounds[0]))))
                self.stage.drawn_instead(missing, rounds[-1])
            trial = trials.disturbed(number, rounds[number - 1], counts)
            ending = self._perform(trial)
            differences = ending.against(findings.undisturbed) if ending.finished else []
            findings.disturbed.append(Disturbed(trial, ending.without_outputs(), differences))
            if not ending.finished:
                return
