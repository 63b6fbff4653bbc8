"""Everything goes wrong at once, under every protocol: the output is exact, or the run is refused."""

from collections import Counter

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.core.coordinators.coordinated_strategy import CoordinatedStrategy
from everstream.core.registry import PROTOCOLS
from everstream.events import OperatorFailed, RunEvent
from everstream.simulation import checks
from everstream.simulation.__main__ import app as replay
from everstream.simulation.happenings import History
from everstream.simulation.storm import histories, replay_command, verdict_on

QUICK = 5
CASES, LONG = 20, 100


def check(protocol: str, seeds: range) -> list[History]:
    found = list(histories(protocol, seeds))
    for history in found:
        why = history.violations or history.notes[-1:]
        assert history.right, f"{why}; replay with: {replay_command(protocol, history.seed)}"
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_whatever_goes_wrong_the_output_is_exact_or_the_run_is_refused(protocol: str) -> None:
    found = check(protocol, range(QUICK))
    assert sum(history.recoveries for history in found) > QUICK / 2
    assert sum(verdict_on(history) == "refused" for history in found) < QUICK / 3


@pytest.mark.parametrize(
    ("protocol", "seed"),
    [
        ("aligned", 593),
        ("aligned", 1725),
        ("at-least-once", 1014),
        ("uncoordinated", 1411),
        ("hmnr", 1411),
    ],
)
def test_storms_that_were_wrong_once_are_right(protocol: str, seed: int) -> None:
    """An order to resume that reaches a new process; a last wait that counted a pause as waiting."""
    check(protocol, range(seed, seed + 1))


@pytest.mark.long
@pytest.mark.parametrize("case", range(CASES))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_it_is_so_in_two_thousand_storms_of_each_protocol(protocol: str, case: int) -> None:
    check(protocol, range(case * LONG, (case + 1) * LONG))


def test_a_storm_has_every_kind_of_fault() -> None:
    faults: list[str] = []
    notes: list[str] = []
    told: list[RunEvent] = []
    for history in histories("aligned", range(60)):
        faults += [line[9:] for line in history.faults]
        notes += history.notes
        told += history.events
    seen = Counter(" ".join(fault.split()[:2]) for fault in faults)
    for what in (
        *(
            "kill worker",
            "kill the",
            "the power",
            "clocks of",
            "an operator",
            "a sink",
            "rot output",
        ),
        *("disk full", "the answer", "the next"),
    ):
        assert seen[what], what
    for rotten in ("rot objects/", "rot copies/"):
        assert any(fault.startswith(rotten) for fault in faults)
    assert any("was read from its copy" in note for note in notes)
    assert any(isinstance(event, OperatorFailed) and event.retry_s for event in told)


def test_the_command_counts_verdicts_and_fails_if_one_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ["simulate", "--protocol", "aligned", "--seeds", "3"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert "aligned" in result.output and "refused" in result.output
    monkeypatch.setattr(CoordinatedStrategy, "_is_last", lambda self, manifest: False)
    monkeypatch.setattr(checks, "LONGEST_CALM_STEPS", 2000)
    result = CliRunner().invoke(app, [*options[:-1], "1"])
    assert result.exit_code == 1
    assert replay_command("aligned", 0) in result.output.replace("\n", " ")


def test_the_command_names_the_protocols_there_are() -> None:
    result = CliRunner().invoke(app, ["simulate", "--protocol", "hopeful"])
    assert result.exit_code == 2 and "aligned" in result.output


def test_a_storm_can_be_replayed() -> None:
    result = CliRunner().invoke(replay, ["7", "--protocol", "unaligned", "--storm"])
    assert result.exit_code == 0
    assert "verdict: right" in result.output
