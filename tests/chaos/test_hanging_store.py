"""The store hangs: no call fails, none comes back. The pipeline goes on, says so, and is exact."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstream.state.local_recovery import PREFIX as NEAR

from .conftest import MASTER, expected, kill, open_gate, pid_of, shown
from .drivers import wait_for_line
from .hanging import PACKAGES, hanging, install

SCRIPT = """
import sys
from pathlib import Path
import everstream as es
from tests.chaos.conftest import killable

def tell(event):
    match event:
        case es.events.EpochStable(epoch=epoch):
            print("epoch", epoch, flush=True)
        case es.events.Progressed(status=status):
            print("read", status.records_read, flush=True)
        case es.events.Stalled():
            print("stalled", event.what, "|", *event.missing, "|", event.held_up_by, flush=True)

folder = Path(sys.argv[1])
result = killable(folder).run(
    checkpoint=es.Coordinated(every="200ms"), store=f"hanging://{folder}/store", slow_after="500ms",
    master=sys.argv[2], workers=6, max_restarts=50, listener=tell,
)
print("outcome", result.outcome.value, "recoveries", len(result.recoveries), flush=True)
"""


class Told:
    """A driver process, and what it has said so far."""

    def __init__(self, folder: Path) -> None:
        root = str(Path(__file__).parents[2])
        self.folder = folder
        self._own = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder), MASTER],
            cwd=root,
            env={
                **os.environ,
                "PYTHONPATH": f"{root}:{folder / PACKAGES}",
                "TMPDIR": self._own.name,
            },
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self, start: str, words: str = "") -> str:
        """The next line that starts so and has these words in it.

        On a slow machine more takes longer than it should than what a test holds up.
        """
        while words not in (line := wait_for_line(self.process, start)):
            pass
        return line.strip()

    def reads_on(self) -> None:
        """Wait until the sources have given more than they have by now."""
        now = self.says("read")
        while self.says("read") == now:
            pass

    def forget_copies(self) -> None:
        """As on another machine: what the workers keep near at hand is not there."""
        for near in Path(self._own.name).glob(f"{NEAR}*"):
            shutil.rmtree(near)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self._own.name, ignore_errors=True)  # its workers may still be at it

    def finishes_exactly(self) -> int:
        """The number of its recoveries."""
        open_gate(self.folder)
        outcome = self.says("outcome").split()
        assert self.process.wait() == 0
        assert outcome[1] == "finished"
        assert shown(self.folder) == expected()
        return int(outcome[3])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Told]:
    """A driver that hangs already when it opens the store."""
    install(tmp_path)
    with hanging(tmp_path, "write-manifests"):
        told = Told(tmp_path)
        told.says("stalled opening the store ")
    yield told
    told.end()


def test_a_store_that_hangs_again_and_again_holds_nothing_up_is_said_and_costs_no_record(
    run: Told,
) -> None:
    run.says("epoch 3")
    checkpoints_that_cannot_be_written_do_not_pile_up(run)
    going_back_waits_for_the_fate_of_a_manifest(run)
    a_checkpoint_that_cannot_be_read_back_is_waited_for(run)
    assert run.finishes_exactly() == 2


def checkpoints_that_cannot_be_written_do_not_pile_up(run: Told) -> None:
    with hanging(run.folder, "write-objects"):
        said = run.says("stalled epoch ", "the store: it has not saved the checkpoint of")
        what, missing, _ = said.split("|")
        assert missing.strip()
        epoch = int(what.split()[2])
        run.reads_on()
    assert run.says("epoch") == f"epoch {epoch}"


def going_back_waits_for_the_fate_of_a_manifest(run: Told) -> None:
    with hanging(run.folder, "write-manifests"):
        run.says("stalled writing the manifest of epoch ")
        run.reads_on()
        kill(pid_of(run.folder, "middle"))
        run.says("stalled writing the manifest of epoch ", "the rollback starts after it")
    run.says("epoch")  # the one that hung
    run.says("epoch")  # all are back


def a_checkpoint_that_cannot_be_read_back_is_waited_for(run: Told) -> None:
    with hanging(run.folder, "read-objects"):
        run.forget_copies()
        kill(pid_of(run.folder, "middle"))
        _, missing, _ = run.says("stalled restoring epoch ").split("|")
        assert missing.strip()
