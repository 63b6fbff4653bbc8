"""Thousands of simulated runs with faults: every one ends, with exactly the right output."""

from functools import cache

import pytest
from typer.testing import CliRunner

from everstream.core.coordinators.coordinated_strategy import CoordinatedStrategy
from everstream.core.orders import Outcome, Policy
from everstream.core.scheme import NONE
from everstream.events import CheckpointAborted, RunEvent, StoreDamaged
from everstream.simulation.__main__ import app
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.happenings import History
from everstream.simulation.shapes import SHAPES, shape_for
from everstream.simulation.world import World
from tests.sampling import sampled

SEEDS_PER_CASE = 100
CASES = 20
QUICK_CASES = 1


def replay_command(seed: int) -> str:
    return f"python -m everstream.simulation {seed} --trace"


@cache
def ended(seed: int) -> History:
    """The run of a seed, which must be right."""
    history = World(seed, shape_for(seed), Faults()).run()
    assert history.right, f"{history.violations}; replay with: {replay_command(seed)}"
    return history


@pytest.mark.parametrize("case", sampled(map(str, range(CASES)), [*map(str, range(QUICK_CASES))]))
def test_every_seed_ends_with_exactly_the_right_output(case: str) -> None:
    first = int(case) * SEEDS_PER_CASE
    for seed in range(first, first + SEEDS_PER_CASE):
        ended(seed)


def test_the_seeds_meet_every_shape_and_every_kind_of_fault() -> None:
    shapes, faults = set(), set()
    told: list[RunEvent] = []
    for seed in range(120):
        history = ended(seed)
        shapes.add(history.shape)
        faults |= {" ".join(line.split()[1:3]) for line in history.faults}
        told += history.events
    assert shapes == {"line", "shuffle", "diamond", "many-sinks", "ordered-farm", "uneven-join"}
    assert len(shapes) == len(SHAPES)
    assert {"kill worker", "kill the", "disk full", "the answer"} <= faults
    assert any(fault.startswith("rot objects/") for fault in faults)
    for folder in ("manifests", "objects"):
        late = {fault for fault in faults if fault.startswith(f"{folder}/")}
        assert {fault.split()[1] for fault in late} == {"times", "arrives"}
    assert any(isinstance(event, StoreDamaged) and event.fallback_epoch for event in told)
    reasons = [event.reason for event in told if isinstance(event, CheckpointAborted)]
    assert any("could not save" in reason for reason in reasons)
    assert any("OddError" in str(event) for event in told)
    assert any("given up: not complete after" in reason for reason in reasons)


def test_without_faults_there_is_no_recovery_and_nothing_to_note() -> None:
    for seed in range(20):
        history = World(seed, shape_for(seed), NO_FAULTS).run()
        assert history.right
        assert (history.recoveries, history.faults, history.notes) == (0, [], [])


def test_without_checkpoints_a_failure_starts_the_run_over_and_the_output_is_right() -> None:
    policy = Policy(checkpoints=False, max_restarts=1000)
    for seed in range(20):
        for faults in (Faults(), NO_FAULTS):
            world = World(seed, shape_for(seed), faults, scheme=NONE, policy=policy)
            history = world.run()
            assert history.right, f"seed {seed}: {history.violations}"
        assert history.epochs == 1, "only the last one, when everything has ended"


def test_a_run_that_is_stopped_among_faults_and_resumed_ends_with_the_right_output() -> None:
    stops = 0
    for seed in range(20):
        world = World(seed, shape_for(seed), Faults())
        for at_s in (0.1 + seed % 5 / 10, 0.6 + seed % 7 / 10):
            world.scheduler.at(at_s, world.stop)
        while world.run().outcome is Outcome.STOPPED:
            stops += 1
            world.resume()
        assert world.history.right, f"seed {seed}: {world.history.violations}"
    assert stops > 6, "they do stop"


def test_the_same_seed_gives_the_same_run() -> None:
    def trace(seed: int) -> list[str]:
        world = World(seed, shape_for(seed), Faults())
        events: list[str] = []
        world.watchers.append(lambda text: events.append(f"{world.scheduler.now_s} {text}"))
        world.run()
        return events

    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


def test_the_command_shows_shape_faults_and_verdict() -> None:
    result = CliRunner().invoke(app, ["3"])
    assert result.exit_code == 0
    assert result.output.startswith("seed 3: shape ")
    assert "faults:" in result.output and "notes:" in result.output
    assert result.stdout.rstrip().endswith("verdict: right")


def test_the_command_traces_every_event_and_can_do_without_faults() -> None:
    result = CliRunner().invoke(app, ["3", "--trace", "--no-faults"])
    assert result.exit_code == 0
    for event in ("worker 0 joins", "checkpoint 1", " is stable", ": end 0, frame"):
        assert event in result.output
    assert "faults:\n  none" in result.output


def test_the_command_fails_if_the_run_was_not_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoordinatedStrategy, "_is_last", lambda self, manifest: False)
    result = CliRunner().invoke(app, ["3", "--no-faults"])
    assert result.exit_code == 1
    assert "violated: liveness: the run has not ended" in result.output
    assert result.stdout.rstrip().endswith("verdict: WRONG")
