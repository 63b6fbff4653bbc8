"""Every protocol in thousands of simulated runs with faults, on every shape it allows.

A seed that fails is replayed with `python -m everstream.simulation SEED --protocol NAME --trace`,
and `--cycles` for the shapes with a feedback edge.
"""

import random
from collections import Counter
from typing import Any

import pytest
from typer.testing import CliRunner

from everstream.connectors.generate.sources import Range
from everstream.core.orders import Outcome, Policy
from everstream.core.registry import PROTOCOLS
from everstream.errors import GraphError
from everstream.pipeline.stream import Pipeline
from everstream.simulation.__main__ import app
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.happenings import History
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import EVENT_TIME_SHAPES, Shape, shape_for
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World

EXACT = ["unaligned", "uncoordinated", "hmnr", "bcs"]
LOGGED = ["uncoordinated", "hmnr", "bcs"]
QUICK = 6
LONG_CASES = 20
LONG = 30


def replay_command(protocol: str, seed: int, cycles: bool, more: str = "") -> str:
    flags = f"--protocol {protocol}{' --cycles' * cycles}{more}"
    return f"python -m everstream.simulation {seed} {flags} --trace"


def check(protocol: str, seeds: range, cycles: bool) -> list[History]:
    histories = []
    for seed in seeds:
        shape, scheme = shape_for(seed, cycles=cycles), scheme_for(protocol, seed)
        history = World(seed, shape, Faults(), scheme).run()
        replay = replay_command(protocol, seed, cycles)
        assert history.right, f"{history.violations}; replay with: {replay}"
        histories.append(history)
    return histories


@pytest.mark.parametrize("cycles", [False, True], ids=["acyclic", "cyclic"])
@pytest.mark.parametrize("protocol", EXACT)
def test_every_seed_ends_with_exactly_the_right_output(protocol: str, cycles: bool) -> None:
    histories = check(protocol, range(QUICK), cycles)
    assert sum(history.recoveries for history in histories) > QUICK // 4, "they do fail"


@pytest.mark.long
@pytest.mark.parametrize("case", range(1, LONG_CASES + 1))
@pytest.mark.parametrize("cycles", [False, True], ids=["acyclic", "cyclic"])
@pytest.mark.parametrize("protocol", EXACT)
def test_a_thousand_seeds_end_with_exactly_the_right_output(
    protocol: str, cycles: bool, case: int
) -> None:
    """Twenty cases of thirty seeds, with and without cycles: 1,200 runs of each protocol."""
    check(protocol, range(case * LONG - LONG + QUICK, case * LONG + QUICK), cycles)


def test_at_least_once_loses_nothing_and_doubles_only_after_failures() -> None:
    histories = check("at-least-once", range(15), cycles=False)
    assert sum(history.duplicated for history in histories) > 0, "it is not exactly-once by luck"
    for seed in range(10):
        calm = World(seed, shape_for(seed), NO_FAULTS, scheme_for("at-least-once", seed)).run()
        assert calm.right and calm.duplicated == 0


@pytest.mark.long
@pytest.mark.parametrize("case", range(1, 11))
def test_at_least_once_loses_nothing_for_a_thousand_seeds(case: int) -> None:
    check("at-least-once", range(case * 110, (case + 1) * 110), cycles=False)


def check_memory(seeds: range) -> Counter[str]:
    """With logs in memory: whatever is missing at the end is known, and nothing is doubled."""
    found: Counter[str] = Counter()
    for seed in seeds:
        protocol, cycles = LOGGED[seed // 2 % 3], bool(seed % 2)
        shape = shape_for(seed, cycles=cycles)
        if shape.ordered:
            continue
        scheme = scheme_for(protocol, seed, log="memory")
        history = World(seed, shape, Faults(), scheme).run()
        replay = replay_command(protocol, seed, cycles, " --log memory")
        assert history.right and not history.duplicated, f"{history.violations}: {replay}"
        assert not history.lost or history.lost_frames, replay
        found.update(runs=1, losing=bool(history.lost_frames))
    return found


def test_with_logs_in_memory_what_is_lost_is_counted() -> None:
    found = check_memory(range(20))
    assert 5 < found["losing"] < found["runs"]


@pytest.mark.long
@pytest.mark.parametrize("case", range(1, 11))
def test_with_logs_in_memory_what_is_lost_is_counted_for_a_thousand_seeds(case: int) -> None:
    check_memory(range(case * 110, (case + 1) * 110))


def test_without_a_failure_logs_in_memory_lose_nothing() -> None:
    for seed in range(8):
        shape = shape_for(seed, cycles=True)
        scheme = scheme_for("uncoordinated", seed, log="memory")
        history = World(seed, shape, NO_FAULTS, scheme).run()
        assert history.right and (history.lost, history.lost_frames) == (0, 0)


def stop_and_resume(protocol: str, seed: int, cycles: bool) -> int:
    """Stopped twice among faults and resumed each time; how often it did stop."""
    world = World(seed, shape_for(seed, cycles=cycles), Faults(), scheme_for(protocol, seed))
    for at_s in (0.1 + seed % 5 / 10, 0.6 + seed % 7 / 10):
        world.scheduler.at(at_s, world.stop)
    stops = 0
    while world.run().outcome is Outcome.STOPPED:
        stops += 1
        world.resume()
    replay = replay_command(protocol, seed, cycles)
    assert world.history.right, f"{world.history.violations}; but for the stops: {replay}"
    return stops


@pytest.mark.parametrize("protocol", [*EXACT, "at-least-once"])
def test_a_run_stopped_among_faults_and_resumed_ends_with_the_right_output(protocol: str) -> None:
    stops = sum(stop_and_resume(protocol, seed, cycles=False) for seed in range(6))
    if protocol in EXACT:
        stops += sum(stop_and_resume(protocol, seed, cycles=True) for seed in range(4))
    assert stops > 2, "they do stop"


@pytest.mark.long
@pytest.mark.parametrize("protocol", EXACT)
def test_hundreds_of_runs_are_stopped_and_resumed(protocol: str) -> None:
    for seed in range(4, 150):
        for cycles in (False, True):
            stop_and_resume(protocol, seed, cycles)


def check_event_time(protocol: str, seeds: range) -> None:
    for seed in seeds:
        for shape in EVENT_TIME_SHAPES:
            scheme = scheme_for(protocol, seed)
            history = World(seed, shape(random.Random(seed)), Faults(), scheme).run()
            where = f"seed {seed}, {shape.__name__}, {protocol}"
            assert history.right, f"{where}: {history.violations}"


@pytest.mark.parametrize("protocol", EXACT)
def test_windows_and_joins_of_event_time_are_right_after_any_faults(protocol: str) -> None:
    check_event_time(protocol, range(2))


@pytest.mark.long
@pytest.mark.parametrize("protocol", EXACT)
def test_windows_and_joins_of_event_time_are_right_for_a_hundred_seeds(protocol: str) -> None:
    check_event_time(protocol, range(2, 103))


@pytest.mark.parametrize("protocol", ["hmnr", "bcs"])
def test_checkpoints_are_forced_on_cycles_only(protocol: str) -> None:
    def forced(cycles: bool) -> int:
        worlds = [
            World(seed, shape_for(seed, cycles=cycles), NO_FAULTS, scheme_for(protocol, seed))
            for seed in range(8)
        ]
        return sum(world.run().forced for world in worlds)

    assert forced(cycles=True) > 0
    assert forced(cycles=False) == 0


@pytest.mark.parametrize("protocol", ["aligned", "at-least-once"])
def test_protocols_that_cannot_go_round_refuse_a_cycle_and_name_those_that_can(
    protocol: str,
) -> None:
    scheme = scheme_for(protocol, 0)
    world = World(0, shape_for(0, cycles=True), NO_FAULTS, scheme)
    with pytest.raises(GraphError) as refused:
        scheme.check(world.plan)
    for name in (
        "unaligned",
        "CommunicationInduced",
        "Uncoordinated",
        "hmnr",
        "bcs",
        "--checkpoint",
    ):
        assert name in refused.value.message
    for other in EXACT:
        scheme_for(other, 0).check(world.plan)


def test_an_ordered_sink_refuses_logs_in_memory() -> None:
    seed = next(seed for seed in range(100) if shape_for(seed).ordered)
    world = World(seed, shape_for(seed), NO_FAULTS)
    with pytest.raises(GraphError, match=r"operator 'out'.*log=\"durable\".*--log durable"):
        scheme_for("hmnr", seed, log="memory").check(world.plan)
    scheme_for("hmnr", seed).check(world.plan)


# Partial rollback: a fork whose branches share nothing but their source.


def _fork(pipeline: Pipeline, world: int) -> None:
    numbers = pipeline.source(Range(400, batch=2), name="numbers")
    for side in ("left", "right"):
        counts = numbers.key_by(lambda x: x % 3).fold(
            init=int, update=lambda count, _: count + 1, name=side, shards=2
        )
        counts.on_demand().sink(OutsideSink(world), name=f"{side}-out", shards=1)


def _fork_expected() -> dict[str, list[Any]]:
    totals = Counter(x % 3 for x in range(400))
    rows = [(key, i + 1) for key, total in totals.items() for i in range(total)]
    return {"left-out": rows, "right-out": rows}


FORK = Shape("fork", 7, _fork, _fork_expected)
"""numbers -> left x2 -> left-out, numbers -> right x2 -> right-out: each shard on its own worker."""


def after_killing(shard: str, protocol: str, seed: int) -> tuple[World, dict[str, int]]:
    """Kill the worker of one shard once half is done; by how many generations each has risen."""
    policy = Policy(every_s=0.03, max_restarts=10)
    world = World(seed, FORK, NO_FAULTS, scheme_for(protocol, seed), policy)
    workers = {str(shard): worker for shard, worker in world.plan.worker_of.items()}
    assert len(set(workers.values())) == 7
    at_the_kill: dict[str, int] = {}

    def generations() -> dict[str, int]:
        return {
            str(runner.shard.id): runner.shard.generation
            for worker in world.workers.values()
            for runner in worker.runners.values()
        }

    def kill() -> None:
        at_the_kill.update(generations())
        world.kill_worker(workers[shard])

    world.scheduler.at(0.3, kill)
    history = world.run()
    assert history.right and history.recoveries == 1, history.violations
    after = generations()
    return world, {name: after[name] - before for name, before in at_the_kill.items()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("protocol", LOGGED)
def test_in_a_fork_a_failed_branch_leaves_the_other_as_it_is(protocol: str, seed: int) -> None:
    world, risen = after_killing("left:1", protocol, seed)
    assert risen["left:1"] == 1
    assert set(risen) - {name for name, by in risen.items() if by == 0} <= {"left:1", "left-out:0"}
    [report] = world.coordinator.recoveries
    assert set(report.went_back) <= {"left:1", "left-out:0"}


@pytest.mark.parametrize("protocol", LOGGED)
def test_a_failed_sink_leaves_everybody_else_as_they_are(protocol: str) -> None:
    world, risen = after_killing("left-out:0", protocol, 1)
    assert [name for name, by in risen.items() if by] == ["left-out:0"]
    [report] = world.coordinator.recoveries
    assert report.went_back == ("left-out:0",)


def test_while_a_branch_recovers_the_other_goes_on() -> None:
    """Its counters rise between the kill and the return of the dead worker, and never fall."""
    policy = Policy(every_s=0.03, max_restarts=10)
    world = World(2, FORK, NO_FAULTS, scheme_for("uncoordinated", 2), policy)
    dead = world.plan.worker_of[next(s for s in world.plan.shards if str(s) == "left:0")]
    seen: list[tuple[str, int]] = []

    def watch(text: str) -> None:
        seen.append((text, world.coordinator.totals().get("right-out", 0)))

    world.watchers.append(watch)
    world.scheduler.at(0.3, lambda: world.kill_worker(int(dead)))
    assert world.run().right
    texts = [text for text, _ in seen]
    killed = texts.index(f"kill worker {dead}")
    back = next(n for n in range(killed, len(texts)) if texts[n] == f"worker {dead} joins")
    counts = [count for _, count in seen]
    assert counts[killed] < counts[back], "it went on meanwhile"
    assert counts == sorted(counts), "and never went back"


def test_with_coordinated_checkpoints_everybody_goes_back() -> None:
    _, risen = after_killing("left:1", "unaligned", 1)
    assert all(by > 0 for by in risen.values())


# Replaying from the command line.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_command_replays_each_protocol(protocol: str) -> None:
    cycles = ["--cycles"] if protocol in EXACT else []
    result = CliRunner().invoke(app, ["4", "--protocol", protocol, *cycles])
    assert result.exit_code == 0, result.output
    assert ("loop" in result.stdout) == bool(cycles)
    assert result.stdout.rstrip().endswith("verdict: right")


def test_the_command_says_what_was_lost_with_logs_in_memory() -> None:
    how = ["--protocol", "uncoordinated", "--cycles", "--log", "memory"]
    said = [CliRunner().invoke(app, [str(seed), *how]).output for seed in range(4, 12)]
    assert any("frames known to be lost" in output for output in said)


@pytest.mark.parametrize(
    "wrong",
    [
        *(["--protocol", "chandy"], ["--cycles"]),
        *(["--protocol", "hmnr", "--log", "tape"], ["--protocol", "aligned", "--log", "tape"]),
    ],
)
def test_the_command_refuses_what_it_cannot_replay(wrong: list[str]) -> None:
    result = CliRunner().invoke(app, ["3", *wrong])
    assert result.exit_code == 2
    assert "Invalid value" in result.output
