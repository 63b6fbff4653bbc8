"""Every protocol on real processes with SIGKILL: a fork, and a pipeline that feeds itself."""

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
from everstream.engine.result import RunResult
from everstream.events import RunStatus, StoreDamaged
from everstream.pipeline.checkpointing import Checkpointing
from tests.output import rows_in
from tests.processes import wait_until_gone
from tests.sampling import sampled

from .conftest import MASTER, Killer, kill, newest_manifest, open_gate
from .drivers import wait_for_line
from .places import in_a_folder, store_of
from .shapes import SCHEMES, fork, fork_rows, loop, loop_rows, starts

CYCLIC = ["unaligned", "uncoordinated", "hmnr", "bcs"]


def difference(want: Counter[Any], got: Counter[Any]) -> tuple[int, int]:
    """Lost and duplicated."""
    return (want - got).total(), (got - want).total()


def run(
    folder: Path, make: Callable[[Path], es.Pipeline], scheme: Checkpointing, listener: Killer
) -> RunResult:
    return make(folder).run(
        checkpoint=scheme,
        store=store_of(folder),
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


@pytest.mark.parametrize("name", sampled(SCHEMES, ["unaligned"]))
def test_in_a_fork_a_killed_branch_and_a_killed_source_lose_and_double_nothing(
    tmp_path: Path, name: str
) -> None:
    result = run(tmp_path, fork, SCHEMES[name], killer(tmp_path, (4, "left.0"), (9, "front.0")))
    assert len(result.recoveries) == 2
    for side in ("left", "right"):
        lost, duplicated = difference(fork_rows(), rows_in(tmp_path / side))
        assert lost == 0
        assert duplicated == 0 or name == "at-least-once"
    assert result.checkpoint_stats.forced == 0, "nothing goes round"


@pytest.mark.parametrize("name", sampled(CYCLIC, ["unaligned", "hmnr"]))
def test_on_a_cycle_a_killed_shard_loses_and_doubles_nothing(tmp_path: Path, name: str) -> None:
    result = run(tmp_path, loop, SCHEMES[name], killer(tmp_path, (5, "visits.1")))
    assert len(result.recoveries) == 1
    assert difference(loop_rows(), rows_in(tmp_path / "out")) == (0, 0)


class Onlooker(Killer):
    """A killer that also notes down how many records one operator has taken."""

    def __init__(self, folder: Path, operator: str, at_epoch: Callable[[int], None]) -> None:
        super().__init__(folder, at_epoch=at_epoch)
        self.operator = operator
        self.counts: list[int] = []

    def progress(self, status: RunStatus) -> None:
        self.counts.append(status.totals.get(self.operator, 0))
        super().progress(status)


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
        assert difference(fork_rows(), rows_in(tmp_path / side)) == (0, 0)


class Spoiler(Killer):
    """Damages a log segment, copy and all, as soon as a line names it; then kills a reader of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.known: set[str] = set()

    def epoch(self, epoch: int) -> None:
        records = newest_manifest(store_of(self.folder)).records.values()
        refs = [ref for record in records for ref in record.all_objects]
        logs = {
            ref.name for ref in refs if ref.name.startswith("numbers-0/") and ".log" in ref.name
        }
        fresh = logs - self.known  # the lines before this one can do without it
        self.known |= logs
        if epoch >= 4 and fresh and not self.of(StoreDamaged):
            for path in (self.folder / "store").glob(f"[oc]*/{max(fresh)}*"):
                path.write_bytes(bytes(reversed(path.read_bytes())))
            with suppress(ProcessLookupError):  # lines move on while it is being restarted
                kill(starts(self.folder, "left.0")[-1])

    def progress(self, status: RunStatus) -> None:
        if self.of(StoreDamaged):
            super().progress(status)


@in_a_folder
def test_a_corrupt_newest_log_segment_is_noticed_and_costs_no_results(tmp_path: Path) -> None:
    listener = Spoiler(tmp_path)
    try:
        run(tmp_path, fork, SCHEMES["uncoordinated"], listener)
    except es.RunFailed as refusal:
        # Lines go on being written while the killed shard starts, and may come to need it, all.
        assert "its checksum does not match" in str(refusal)
        assert "no older checkpoint is left" in str(refusal)
        return
    assert listener.of(StoreDamaged)
    for side in ("left", "right"):
        assert difference(fork_rows(), rows_in(tmp_path / side)) == (0, 0)


SCRIPT = """
import sys
from pathlib import Path
from everstream.events import EpochStable
from tests.chaos import shapes
from tests.chaos.conftest import MASTER
from tests.chaos.places import store_of

def tell(event):
    if isinstance(event, EpochStable):
        print("epoch", event.epoch, flush=True)

folder = Path(sys.argv[1])
result = getattr(shapes, sys.argv[2])(folder).run(
    checkpoint=shapes.SCHEMES[sys.argv[3]], store=store_of(folder), max_restarts=50,
    master=MASTER, workers=4, listener=tell,
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


@pytest.mark.long
def test_a_killed_driver_with_uncoordinated_checkpoints_is_followed_exactly(tmp_path: Path) -> None:
    driver = start(tmp_path, "fork", "uncoordinated")
    wait_for_line(driver, "epoch 6")
    workers = [starts(tmp_path, f"{name}.0")[-1] for name in ("front", "left", "right")]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until_gone(workers)
    open_gate(tmp_path)
    again = start(tmp_path, "fork", "uncoordinated")
    line = wait_for_line(again, "outcome").split()
    assert again.wait() == 0
    assert line[1] == "finished" and int(line[3]) >= 6
    for side in ("left", "right"):
        assert difference(fork_rows(), rows_in(tmp_path / side)) == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["hmnr", "unaligned", "bcs"])
def test_ctrl_c_stops_in_the_middle_of_a_cycle_and_the_next_run_goes_on_exactly(
    tmp_path: Path, name: str
) -> None:
    driver = start(tmp_path, "loop", name)
    wait_for_line(driver, "epoch 4")
    driver.send_signal(signal.SIGINT)
    assert wait_for_line(driver, "outcome").split()[1] == "stopped"
    assert driver.wait() == 0
    part_way = rows_in(tmp_path / "out")
    assert 0 < part_way.total() < loop_rows().total()
    open_gate(tmp_path)
    again = start(tmp_path, "loop", name)
    assert wait_for_line(again, "outcome").split()[1] == "finished"
    assert again.wait() == 0
    assert difference(loop_rows(), rows_in(tmp_path / "out")) == (0, 0)
