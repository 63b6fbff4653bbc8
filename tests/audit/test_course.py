"""The course of an audit, on a stage that only plays the runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from everstream.audit.audit_plan import MAX_EXTRA_ROUNDS, Audit, Findings
from everstream.audit.kill_plan import A_FEW
from everstream.audit.trial import Trial, TrialResult
from everstream.engine.faults.kills import Kill
from tests.audit.plans import three

RIGHT = {"out": list(range(600))}
COUNTS = {"numbers": (0, 600), "count": (600, 600), "out": (600, 0)}
FINISHED = TrialResult("finished", counts=COUNTS, outputs=RIGHT)
DOUBLED = TrialResult("finished", counts=COUNTS, outputs={"out": [*range(600), 7]})


class Played:
    """Every run ends as `play` says; kills happen unless it is told that they do not."""

    def __init__(self, play: Callable[[Trial], TrialResult], happening: int = A_FEW) -> None:
        self.play = play
        self.happening = happening
        self.trials: list[Trial] = []
        self.drawn_kills: list[str] = []
        self.instead: list[int] = []

    def perform(self, trial: Trial) -> TrialResult:
        self.trials.append(trial)
        for kill in trial.kills[: self.happening]:
            trial.end_gate.on_kill(Kill.parse(kill))
        return self.play(trial)

    def drawn(self, rounds: list[list[str]]) -> None:
        self.drawn_kills = [kill for drawn in rounds for kill in drawn]

    def drawn_instead(self, missing: int, kills: list[str]) -> None:
        self.instead.append(missing)
        self.drawn_kills += kills

    @property
    def names(self) -> list[str]:
        return [trial.name for trial in self.trials]


def audited(stage: Played, folder: Path, kills: int = 2) -> Findings:
    return Audit(three(), stage, folder, kills=kills, seed=7).run()


def test_a_pipeline_that_gives_the_same_under_kills_passes(tmp_path: Path) -> None:
    stage = Played(lambda _: FINISHED)
    findings = audited(stage, tmp_path, kills=A_FEW + 2)
    assert stage.names == ["undisturbed", "disturbed-1", "disturbed-2"]
    assert [len(trial.kills) for trial in stage.trials] == [0, A_FEW, 2]
    assert stage.trials[0].rehearsal.gate is None, "an undisturbed run is not slowed"
    assert dict(stage.trials[1].rehearsal.records) == {"numbers": 600}
    assert findings.passed
    assert (findings.happened, findings.expected) == (A_FEW + 2, {"out": 600})
    assert [kill for run in findings.to_json()["plan"] for kill in run] == stage.drawn_kills


def test_a_doubled_record_is_found_and_held_against_a_second_undisturbed_run(
    tmp_path: Path,
) -> None:
    stage = Played(lambda trial: DOUBLED if trial.kills else FINISHED)
    findings = audited(stage, tmp_path)
    assert stage.names == ["undisturbed", "disturbed-1", "again"]
    assert stage.trials[-1].rehearsal.gate is not None, "slowed like those with kills"
    assert not findings.passed
    assert (findings.lost, findings.duplicated) == (0, 1)
    assert findings.again is not None and all(d.verdict.exact for d in findings.again)


def test_kills_that_did_not_happen_are_drawn_anew_a_few_times(tmp_path: Path) -> None:
    stage = Played(lambda _: FINISHED, happening=1)
    findings = audited(stage, tmp_path, kills=A_FEW)
    assert stage.instead == [A_FEW - 1, A_FEW - 2, A_FEW - 3]
    assert findings.happened == 1 + MAX_EXTRA_ROUNDS
    assert findings.passed


def test_without_a_single_kill_nothing_was_shown(tmp_path: Path) -> None:
    stage = Played(lambda _: FINISHED, happening=0)
    findings = audited(stage, tmp_path)
    assert stage.names == ["undisturbed", "disturbed-1"], "it would not happen the next time either"
    assert findings.exact
    assert not findings.passed


@pytest.mark.parametrize(
    ("ending", "interrupted"),
    [
        (TrialResult("failed", error="disk full"), False),
        (TrialResult("stopped", timed_out=True), False),
        (TrialResult("stopped"), True),
        (TrialResult("killed"), True),
    ],
)
def test_a_run_that_does_not_finish_ends_the_audit_and_if_interrupted_there_is_no_verdict(
    tmp_path: Path, ending: TrialResult, interrupted: bool
) -> None:
    stage = Played(lambda trial: ending if trial.kills else FINISHED)
    findings = audited(stage, tmp_path, kills=A_FEW + 1)
    assert stage.names == ["undisturbed", "disturbed-1"]
    assert findings.interrupted is interrupted
    assert findings.failed
    assert not findings.passed


def test_nothing_is_killed_if_the_undisturbed_run_does_not_finish(tmp_path: Path) -> None:
    stage = Played(lambda _: TrialResult("failed", error="no such file"))
    assert not audited(stage, tmp_path).passed
    assert stage.names == ["undisturbed"]
