"""Temporary folders of killed processes go; those of living ones stay."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from everstream.engine import scratch
from everstream.engine.continuous.transport.endpoints import RunKeys, SocketFactory

CHILD = (
    "from everstream.engine.scratch import make_folder; print(make_folder(), flush=True); input()"
)


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Short, or the folders would be made elsewhere.
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_the_folder_of_a_killed_process_is_removed_by_the_next_run(parent: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    left = Path(child.stdout.readline().strip())
    assert left.is_dir() and left.parent == parent
    mine = Path(scratch.make_folder())
    scratch.sweep()
    assert left.is_dir(), "its maker is alive"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    scratch.sweep()
    assert not left.exists() and mine.is_dir()


def test_a_process_that_has_the_number_of_a_dead_one_is_not_mistaken_for_it(parent: Path) -> None:
    namespace, pid, start = scratch._this_process() or (0, 0, 0)
    earlier = parent / f"everstream-{namespace}-{pid}-{start - 1}-abcdefgh"
    earlier.mkdir()
    scratch.sweep()
    assert not earlier.exists()


def test_what_another_container_or_somebody_else_made_is_left_alone(parent: Path) -> None:
    namespace, pid, start = scratch._this_process() or (0, 0, 0)
    kept = [
        parent / f"everstream-{namespace + 1}-{pid}-{start - 1}-abcdefgh",
        parent / "everstream-demo-x",
        parent / "everstream-a-b-c-d",
    ]
    for folder in kept:
        folder.mkdir()
    scratch.sweep()
    assert all(folder.is_dir() for folder in kept)


def test_the_folder_of_a_killed_worker_goes_with_the_next_run(parent: Path) -> None:
    if (child := os.fork()) == 0:
        SocketFactory(RunKeys.make())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(parent.iterdir())) == 1
    scratch.sweep()
    sockets = SocketFactory(RunKeys.make())
    assert [str(folder) for folder in parent.iterdir()] == [sockets.folder]
    sockets.close()
    assert list(parent.iterdir()) == []
