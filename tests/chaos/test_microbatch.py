"""The driver of micro-batches is killed at a named point, an executor in the middle of an epoch."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import everstream as es
from everstream.core.orders import Outcome
from tests.engine.microbatch.pipelines import RECORDS, SMALL, counted, counting
from tests.engine.tasks.running import MASTER

from .places import store_of

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from tests.engine.microbatch.pipelines import SMALL, counting

counting(sys.argv[3]).run(
    engine="microbatch", master="local[2]", checkpoint=SMALL, store=sys.argv[1], kill=[sys.argv[2]],
    progress=False,
)
"""


class Assassin(es.Operator):
    """Kills the executor it runs in, once."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def process(self, record: int, ctx: es.Context) -> None:
        if record == RECORDS // 2 and not self.marker.exists():
            daemon = Path(f"/proc/{os.getppid()}/status").read_text()
            [parent] = [line for line in daemon.splitlines() if line.startswith("PPid:")]
            executor = int(parent.split()[1])
            assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
            self.marker.write_text(str(executor))
            os.kill(executor, signal.SIGKILL)
        ctx.emit(record)


def killed_at(point: str, store: str | Path, waits_for: str = "") -> None:
    """Run until the driver has been killed at this point; with a number: for the so many-th time."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(store), f"driver@{point}", waits_for],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def check_the_next_driver(store: str | Path) -> None:
    result = counting().run(
        engine="microbatch", master=MASTER, checkpoint=SMALL, store=store, progress=False
    )
    assert result.outcome is Outcome.FINISHED
    assert result.resumed_from > 0
    assert Counter(result.collected()) == counted()


def test_a_driver_killed_between_the_manifest_and_the_commit_leaves_it_to_the_next(
    tmp_path: Path,
) -> None:
    killed_at("after-prepare#2", store_of(tmp_path))
    check_the_next_driver(store_of(tmp_path))


@pytest.mark.long
def test_an_executor_killed_in_the_middle_of_an_epoch_changes_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    pipeline = es.Pipeline("executors")
    numbers = pipeline.source(es.Range(RECORDS, batch=50), name="numbers", shards=2)
    passed = numbers.on_demand().process(Assassin(marker), name="assassin", shards=2)
    keyed = passed.key_by(lambda x: x % 7)
    keyed.fold(init=int, update=lambda n, x: n + 1, name="count", shards=2).collect()
    result = pipeline.run(
        engine="microbatch",
        master="local-cluster[2,1,1024]",
        checkpoint=SMALL,
        progress=False,
    )
    assert marker.exists()
    assert Counter(result.collected()) == counted()


@pytest.mark.long
@pytest.mark.parametrize(
    "point", ["before-snapshot", "after-snapshot", "after-prepare", "in-commit", "after-commit"]
)
def test_a_driver_killed_at_any_point_leaves_nothing_lost_and_nothing_doubled(
    point: str, tmp_path: Path
) -> None:
    killed_at(f"{point}#2", store_of(tmp_path))
    check_the_next_driver(store_of(tmp_path))


@pytest.mark.long
def test_drivers_killed_in_the_midst_of_an_epoch_and_when_they_begin_leave_it_to_the_next(
    tmp_path: Path,
) -> None:
    store = store_of(tmp_path)
    killed_at("in-snapshot", store, waits_for=str(tmp_path / "never"))
    killed_at("after-commit", store)
    killed_at("in-restore", store)
    check_the_next_driver(store)
