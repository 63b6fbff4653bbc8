"""Clocks are set back and forth: nothing waits longer for it, nothing is lost, nothing comes twice."""

import pickle
import random
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream
import everstream as es
from everstream.connectors import Paced, Range
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.coordinators.coordinated_strategy import CoordinatedStrategy
from everstream.core.coordinators.run_state import RunState
from everstream.core.ids import Epoch, Generation
from everstream.core.orders import Policy
from everstream.core.plan import make_plan
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.source import EndOfStream, Reader
from everstream.pipeline.stream import Pipeline
from everstream.pipeline.times import PACE_WHILE_AHEAD, ForwardClock
from everstream.simulation.disk import SimulatedDisk
from everstream.simulation.faults import Faults
from everstream.simulation.outside import OutsideSink
from everstream.state.store import CheckpointStore
from tests.pipeline.sim import Sink, Total, rows_source, simulate
from tests.runtime.workbench import WORLD, bench

HOUR_S = 3600.0


class Wall:
    """The clock of a machine, which somebody sets."""

    def __init__(self, now_s: float = 1e6) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def test_processing_time_goes_on_when_the_clock_is_set_back_until_the_clock_has_caught_up() -> None:
    wall = Wall(100.0)
    clock = ForwardClock(wall)
    wall.now_s = 40.0
    assert clock() == 100.0
    wall.now_s = 50.0
    assert clock() == 100.0 + PACE_WHILE_AHEAD * 10
    wall.now_s = 1000.0
    assert clock() == 1000.0, "caught up"
    wall.now_s = 1001.0
    assert clock() == 1001.0
    clock.not_before(2000.0)
    assert clock() == 2000.0


def drained(reader: Reader, wall: Wall, records: int) -> tuple[list[Any], float]:
    """So many records, and how long that took by a clock that nobody sets."""
    found: list[Any] = []
    took_s = 0.0
    while len(found) < records and took_s < HOUR_S:
        batch = reader.read()
        if batch is None:
            wait_s = reader.ready_in_s()
            wall.now_s += wait_s
            took_s += wait_s
        elif isinstance(batch, EndOfStream):
            break
        else:
            found += batch
    return found, took_s


@pytest.mark.parametrize("by_s", [-HOUR_S, -0.5, 0.5, HOUR_S])
def test_a_paced_source_goes_on_when_the_clock_is_set(by_s: float) -> None:
    wall = Wall()
    reader = Paced(Range(100), rate=10, clock=wall).open(0, 1)
    first, _ = drained(reader, wall, 30)
    wall.now_s += by_s
    rest, took_s = drained(reader, wall, 70)
    assert first + rest == list(range(100))
    assert took_s < 70 / 10 / PACE_WHILE_AHEAD + 1


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_a_paced_source_goes_on_after_a_restart_with_another_clock(by_s: float) -> None:
    wall = Wall()
    source = Paced(Range(100), rate=10, clock=wall)
    reader = source.open(0, 1)
    first, _ = drained(reader, wall, 30)
    offset = pickle.loads(pickle.dumps(reader.offset))
    wall.now_s += by_s
    again = source.open(0, 1)
    again.seek(offset)
    rest, took_s = drained(again, wall, 70)
    assert first + rest == list(range(100))
    assert took_s < 70 / 10 / PACE_WHILE_AHEAD + 1


class Alarm(Operator):
    """Asks once to be called ten seconds after its first record; also after a failure."""

    def on_start(self, ctx: Context) -> None:
        due_s = ctx.state.get("due_s")
        if due_s is not None:
            ctx.wake_at(due_s)

    def process(self, record: Any, ctx: Context) -> None:
        if ctx.state.get("due_s") is None:
            ctx.state.put("due_s", ctx.now_s + 10)
            ctx.wake_at(ctx.now_s + 10)

    def on_wake(self, now_s: float, ctx: Context) -> None:
        RUNG.append(now_s)


RUNG: list[float] = []


def test_a_timer_waits_no_longer_when_the_clock_is_set_back() -> None:
    RUNG.clear()
    wall = Wall()
    it = bench(lambda stream: stream.process(Alarm()))
    it.runner.chain.clock_s = wall
    it.step()
    assert it.runner.timer_in_s() == pytest.approx(10)
    wall.now_s -= HOUR_S
    assert it.runner.timer_in_s() == pytest.approx(10)
    wall.now_s += 10 / PACE_WHILE_AHEAD + 0.01
    it.step()
    assert len(RUNG) == 1


def test_a_timer_waits_no_longer_on_a_machine_whose_clock_is_behind() -> None:
    RUNG.clear()
    wall = Wall()
    it = bench(lambda stream: stream.process(Alarm()))
    it.runner.chain.clock_s = wall
    it.step()
    record = it.checkpoint(1)
    wall.now_s -= HOUR_S
    another = bench(lambda stream: stream.process(Alarm()))
    another.runner.chain.clock_s = wall
    assert another.runner.chain.now_s() == wall.now_s
    another.engine.objects = it.engine.objects
    another.restore(record, stable=1)
    assert another.runner.timer_in_s() == pytest.approx(10)
    wall.now_s += 10 / PACE_WHILE_AHEAD + 0.01
    another.step()
    assert len(RUNG) == 1


def test_every_record_is_in_one_window_of_processing_time_while_clocks_are_set() -> None:
    frame = pl.DataFrame({"k": [f"k{n % 3}" for n in range(90)]})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        keyed = pipeline.source(rows_source(frame, 3), shards=2).key_by("k")
        windows = keyed.window(es.Tumbling("20ms"), time="processing")
        counts = windows.aggregate(n=es.count(), shards=2)
        sink(counts.on_demand().process(Total(), shards=1), "out")

    set_often = Faults(clock_jumps=6, until_s=0.3)
    expected = {"out": [("k0", 30), ("k1", 30), ("k2", 30)]}
    jumps = 0
    for seed in range(5):
        history = simulate(build, expected, seed, set_often)
        jumps += sum("clocks of" in fault for fault in history.faults)
    assert jumps > 5


def test_a_store_changes_hands_whatever_clocks_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases have numbers: of two drivers whose clocks differ by an hour the later one counts."""
    monkeypatch.setattr("time.time", Wall(1e6))
    disk = SimulatedDisk(random.Random(0))
    first, second = CheckpointStore(disk), CheckpointStore(disk)
    lease = first.acquire_lease("ahead")
    monkeypatch.setattr("time.time", Wall(1e6 - HOUR_S))
    later = second.acquire_lease("behind")
    assert later.number > lease.number
    with pytest.raises(es.EverstreamError, match="behind"):
        first.append_manifest(lease, {"objects": []})
    second.append_manifest(later, {"objects": []})


def test_how_old_an_epoch_is_does_not_come_from_the_clock_of_another_driver() -> None:
    plan = make_plan(Pipeline("p").source(Range(3)).sink(OutsideSink(WORLD)), 1)
    found = [EpochManifest(Epoch(4), {}, "p", began_s=1e9)]
    run = RunState(plan, Policy(), Generation(1), found)
    strategy = CoordinatedStrategy(run)
    assert run.manifests[0].began_s == 0
    run.keep(run.manifests[0])
    assert run.writing is None
    strategy.on_manifest_written(run.manifests[0], 5.0)
    assert strategy._line_s is None


WALL_CLOCK = {
    "connectors/lake/delta.py": "shown beside a file of a table",
    "connectors/webhook.py": "for a server that says until when to wait; never longer than patience",
    "connectors/generate/paced.py": "only where no steady clock is known to both processes",
    "pipeline/calls/attempts.py": "for a service that says until when to wait",
    "pipeline/times.py": "the ForwardClock itself",
    "pipeline/operator.py": "for contexts in tests; a chain gives its own",
    "state/local_recovery.py": "how old a folder is that nobody removed; a wrong one costs a copy",
    "engine/continuous/driver/driver.py": "shown beside what was measured",
    "engine/handle.py": "shown beside a savepoint",
    "engine/continuous/worker/worker.py": "behind a ForwardClock",
    "engine/manifest_writer.py": "shown beside a checkpoint",
    "engine/reporting/recording.py": "shown beside what has happened",
    "engine/continuous/worker/operator_logs.py": "shown beside a line of a log",
}
"""Where the clock of the machine is looked at, and why a wrong one does no harm there."""


def test_the_clock_of_the_machine_is_looked_at_in_few_places() -> None:
    package = Path(everstream.__file__).parent
    looking = re.compile(r"\btime\.time\b|\btime_ns\b|datetime\.(now|utcnow|today)\b")
    found = {
        path.relative_to(package).as_posix()
        for room in ("connectors", "core", "pipeline", "runtime", "spark", "state")
        for path in (package / room).rglob("*.py")
        if looking.search(path.read_text())
    }
    assert found <= set(WALL_CLOCK), "durations and timeouts are measured with time.monotonic()"
