"""Every protocol on real processes with SIGKILL: a fork, and a pipeline that feeds itself."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.scheme import Checkpointing
from everstream.spark.listener import Snapshot
from everstream.spark.result import RunResult

from .conftest import KEYS, MASTER, RECORDS, Gated, Killer, kill, open_gate
from .test_driver import wait_for_line, wait_until_gone

EVERY = "200ms"
SCHEMES: dict[str, Checkpointing] = {
    "unaligned": es.Coordinated(every=EVERY, mode="unaligned"),
    "at-least-once": es.Coordinated(every=EVERY, mode="at-least-once"),
    "uncoordinated": es.Uncoordinated(every=EVERY, jitter=0.3),
    "hmnr": es.Induced(every=EVERY, rule="hmnr", jitter=0.3),
    "bcs": es.Induced(every=EVERY, rule="bcs", jitter=0.3),
}


class Starts(es.Operator):
    """Passes records on, and writes down each process in which this shard has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def on_start(self, ctx: es.Context) -> None:
        with (Path(self.folder) / f"{ctx.operator}.{ctx.shard}").open("a") as file:
            file.write(f"{os.getpid()}\n")

    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        ctx.emit_batch(batch)


class Visits(Starts):
    """Counts the visits of each key; a third of the records come by once more."""

    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        for number, left in batch:
            key = number % KEYS
            visits = ctx.state.get(key, 0) + 1
            ctx.state.put(key, visits)
            ctx.emit((key, visits), port="visits")
            if left:
                ctx.emit((number + 1, left - 1), port="round")


def starts(folder: Path, shard: str) -> list[int]:
    """The processes in which a shard has started, the first one first."""
    return [int(line) for line in (folder / "pids" / shard).read_text().split()]


def _counting(stream: es.Stream, folder: Path, side: str) -> None:
    counts = stream.on_demand().process(Starts(folder / "pids"), name=side)
    counted = counts.key_by(lambda n: n % KEYS).aggregate(
        init=int, update=lambda count, n: count + 1, name=f"{side}-count"
    )
    counted.sink(es.JsonLines(str(folder / side)), name=f"{side}-out")


def fork(folder: Path) -> es.Pipeline:
    """front | left | right: three hosts, and the branches know nothing of each other."""
    (folder / "pids").mkdir(exist_ok=True)
    pipeline = es.Pipeline("fork")
    numbers = pipeline.source(Gated(folder / "gate"), name="numbers")
    front = numbers.process(Starts(folder / "pids"), name="front")
    for side in ("left", "right"):
        _counting(front, folder, side)
    return pipeline


def loop(folder: Path) -> es.Pipeline:
    """front | visits x2, which feed themselves and each other | end."""
    (folder / "pids").mkdir(exist_ok=True)
    pipeline = es.Pipeline("loop")
    numbers = pipeline.source(Gated(folder / "gate"), name="numbers")
    front = numbers.process(Starts(folder / "pids"), name="front")
    pairs = front.map(lambda n: (n, 1 if n % 3 == 0 else 0), name="pairs")
    visits = pairs.key_by(lambda pair: pair[0] % KEYS).process(
        Visits(folder / "pids"), name="visits", shards=2
    )
    visits.port("round").feedback(to=visits)
    end = visits.port("visits").on_demand().process(Starts(folder / "pids"), name="end", shards=1)
    end.sink(es.JsonLines(str(folder / "out")), name="out")
    return pipeline


def _rows(visited: Counter[int]) -> Counter[Any]:
    return Counter((key, i + 1) for key, total in visited.items() for i in range(total))


def fork_rows() -> Counter[Any]:
    """What each branch puts out, as a plain sequential program."""
    return _rows(Counter(n % KEYS for n in range(RECORDS)))


def loop_rows() -> Counter[Any]:
    again = Counter((n + 1) % KEYS for n in range(0, RECORDS, 3))
    return _rows(Counter(n % KEYS for n in range(RECORDS)) + again)


def shown(folder: Path) -> Counter[Any]:
    return Counter(
        tuple(json.loads(line))
        for path in folder.glob("part-*.jsonl")
        for line in path.read_text().splitlines()
    )


def difference(want: Counter[Any], got: Counter[Any]) -> tuple[int, int]:
    """Lost and duplicated."""
    return (want - got).total(), (got - want).total()


def run(
    folder: Path, make: Callable[[Path], es.Pipeline], scheme: Checkpointing, listener: Killer
) -> RunResult:
    return make(folder).run(
        checkpoint=scheme,
        store=folder / "store",
        master=MASTER,
        workers=4,
        max_restarts=20,
        listener=listener,
    )


def killer(folder: Path, *plan: tuple[int, str]) -> Killer:
    """Kills the process of a shard when the so-many-th manifest is written."""
    targets = dict(plan)

    def at_epoch(epoch: int) -> None:
        if epoch in targets:
            kill(starts(folder, targets.pop(epoch))[-1])

    return Killer(folder, len(targets), at_epoch=at_epoch)


@pytest.mark.parametrize("name", SCHEMES)
def test_in_a_fork_a_killed_branch_and_a_killed_source_lose_and_double_nothing(
    tmp_path: Path, name: str
) -> None:
    result = run(tmp_path, fork, SCHEMES[name], killer(tmp_path, (4, "left.0"), (9, "front.0")))
    assert len(result.recoveries) == 2
    for side in ("left", "right"):
        lost, duplicated = difference(fork_rows(), shown(tmp_path / side))
        assert lost == 0
        assert duplicated == 0 or name == "at-least-once"
    assert result.tally.forced == 0, "nothing goes round"


@pytest.mark.parametrize("name", ["unaligned", "uncoordinated", "hmnr", "bcs"])
def test_on_a_cycle_a_killed_shard_loses_and_doubles_nothing(tmp_path: Path, name: str) -> None:
    result = run(tmp_path, loop, SCHEMES[name], killer(tmp_path, (5, "visits.1")))
    assert len(result.recoveries) == 1
    assert difference(loop_rows(), shown(tmp_path / "out")) == (0, 0)


class Onlooker(Killer):
    """A killer that also notes down how many records one operator has taken."""

    def __init__(self, folder: Path, operator: str, at_epoch: Callable[[int], None]) -> None:
        super().__init__(folder, at_epoch=at_epoch)
        self.operator = operator
        self.counts: list[int] = []

    def progress(self, snapshot: Snapshot) -> None:
        self.counts.append(snapshot.totals.get(self.operator, 0))
        super().progress(snapshot)


def test_uncoordinated_a_killed_branch_leaves_the_other_process_and_counters_untouched(
    tmp_path: Path,
) -> None:
    def at_epoch(epoch: int) -> None:
        if epoch == 5:
            kill(starts(tmp_path, "left.0")[-1])

    listener = Onlooker(tmp_path, "right-count", at_epoch)
    result = run(tmp_path, fork, SCHEMES["uncoordinated"], listener)
    assert len(starts(tmp_path, "left.0")) == 2
    assert len(starts(tmp_path, "right.0")) == len(starts(tmp_path, "front.0")) == 1
    assert listener.counts == sorted(listener.counts) and listener.counts[-1] > 0
    [report] = result.recoveries
    assert report.went_back == ("left:0",)
    for side in ("left", "right"):
        assert difference(fork_rows(), shown(tmp_path / side)) == (0, 0)


def test_a_corrupt_newest_log_segment_is_noticed_and_costs_no_results(tmp_path: Path) -> None:
    store = tmp_path / "store"
    noticed: list[str] = []

    def at_epoch(epoch: int) -> None:
        if epoch % 4 == 0 and not noticed:
            segments = sorted(store.glob("objects/numbers-0/*.log.*"))
            for path in segments[-1:]:
                path.write_bytes(bytes(reversed(path.read_bytes())))
            with suppress(ProcessLookupError):  # lines move on while it is being restarted
                kill(starts(tmp_path, "left.0")[-1])

    class Watch(Killer):
        def note(self, text: str, warning: bool) -> None:
            super().note(text, warning)
            if "is left out" in text or "falling back" in text:
                noticed.append(text)

        def progress(self, snapshot: Snapshot) -> None:
            if noticed:
                super().progress(snapshot)

    run(tmp_path, fork, SCHEMES["uncoordinated"], Watch(tmp_path, at_epoch=at_epoch))
    assert noticed
    for side in ("left", "right"):
        assert difference(fork_rows(), shown(tmp_path / side)) == (0, 0)


SCRIPT = """
import sys
from pathlib import Path
from everstream.spark.listener import Listener
from tests.chaos import test_protocols as here

class Tell(Listener):
    def epoch(self, manifest):
        print("epoch", manifest.epoch, flush=True)

folder = Path(sys.argv[1])
result = getattr(here, sys.argv[2])(folder).run(
    checkpoint=here.SCHEMES[sys.argv[3]], store=folder / "store", max_restarts=50,
    master=here.MASTER, workers=4, listener=Tell(),
)
print("outcome", result.outcome.value, "from", result.resumed_from, flush=True)
"""


def start(folder: Path, pipeline: str, scheme: str) -> "subprocess.Popen[str]":
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), pipeline, scheme],
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_killed_driver_with_uncoordinated_checkpoints_is_followed_exactly(tmp_path: Path) -> None:
    driver = start(tmp_path, "fork", "uncoordinated")
    wait_for_line(driver, "epoch 6")
    hosts = [starts(tmp_path, f"{name}.0")[-1] for name in ("front", "left", "right")]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until_gone(hosts)
    open_gate(tmp_path)
    again = start(tmp_path, "fork", "uncoordinated")
    line = wait_for_line(again, "outcome").split()
    assert again.wait() == 0
    assert line[1] == "finished" and int(line[3]) >= 6
    for side in ("left", "right"):
        assert difference(fork_rows(), shown(tmp_path / side)) == (0, 0)


@pytest.mark.parametrize(
    "name", ["hmnr", *(pytest.param(n, marks=pytest.mark.long) for n in ("unaligned", "bcs"))]
)
def test_ctrl_c_stops_in_the_middle_of_a_cycle_and_the_next_run_goes_on_exactly(
    tmp_path: Path, name: str
) -> None:
    driver = start(tmp_path, "loop", name)
    wait_for_line(driver, "epoch 4")
    driver.send_signal(signal.SIGINT)
    assert wait_for_line(driver, "outcome").split()[1] == "stopped"
    assert driver.wait() == 0
    part_way = shown(tmp_path / "out")
    assert 0 < part_way.total() < loop_rows().total()
    open_gate(tmp_path)
    again = start(tmp_path, "loop", name)
    assert wait_for_line(again, "outcome").split()[1] == "finished"
    assert again.wait() == 0
    assert difference(loop_rows(), shown(tmp_path / "out")) == (0, 0)
