"""A worker that says nothing is told from one that is dead, and what killed one is said."""

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.engine.reporting.listener import Listener
from everstream.events import WorkerSilent

from .conftest import MASTER

pytestmark = pytest.mark.timeout(300)


class Holds(es.Operator):
    """Holds the interpreter lock, in one C call, until somebody opens the pipe for writing."""

    def __init__(self, pipe: Path) -> None:
        self.pipe = str(pipe)

    def process(self, record: Any, ctx: es.Context) -> None:
        if record == 3:
            ctypes.PyDLL(None).open(self.pipe.encode(), os.O_RDONLY)
        ctx.emit(record)


class Opens(Listener):
    """Lets go of the worker once the run has said that it is silent."""

    def __init__(self, pipe: Path) -> None:
        self.pipe = pipe
        self.silences: list[WorkerSilent] = []

    def on_event(self, event: es.RunEvent) -> None:
        if isinstance(event, WorkerSilent):
            self.silences.append(event)
            self.pipe.open("w").close()


def test_a_worker_that_holds_the_interpreter_lock_is_not_taken_for_dead(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipeline = es.Pipeline("holding")
    pipeline.source(es.Range(10, batch=1)).process(Holds(pipe), name="hold").collect()
    listener = Opens(pipe)
    result = pipeline.run(
        checkpoint=es.Coordinated(every="200ms"),
        master=MASTER,
        heartbeat_timeout="1s",
        listener=listener,
    )
    assert result.collected() == list(range(10))
    assert result.recoveries == []
    (silent, *_) = listener.silences
    assert silent.worker == 0 and silent.doing is not None
    assert "test_silence.py" in silent.doing and "in process" in silent.doing, "the user's own line"


class Crashes(es.Operator):
    """Dies of a segmentation fault, once."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def process(self, record: Any, ctx: es.Context) -> None:
        if record == 3 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            ctypes.string_at(0)
        ctx.emit(record)


def test_a_segmentation_fault_is_called_one_and_its_line_is_shown(tmp_path: Path) -> None:
    pipeline = es.Pipeline("crashing")
    crashes = Crashes(tmp_path / "mark")
    pipeline.source(es.Range(10, batch=1)).process(crashes, name="crash").collect()
    result = pipeline.run(checkpoint=es.Coordinated(every="200ms"), master=MASTER)
    assert result.collected() == list(range(10))
    (report,) = result.recoveries
    assert "Segmentation fault" in report.what
    assert "test_silence.py" in report.what and "in process" in report.what


class Leaves(es.Operator):
    """Ends its process in its own way, once."""

    def __init__(self, mark: Path, leave: Callable[[], None]) -> None:
        self.mark = str(mark)
        self.leave = leave

    def process(self, record: Any, ctx: es.Context) -> None:
        if record == 3 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            self.leave()
        ctx.emit(record)


def leave_by_exit() -> None:
    os._exit(3)


def leave_by_kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("leave", "told"),
    [
        (leave_by_exit, "os._exit(3), in operator 'leave' (shard 0), in File"),
        (leave_by_kill, "; its last operator was operator 'leave' (shard 0)"),
    ],
)
def test_a_process_that_just_ends_is_told_of_with_its_operator(
    leave: Callable[[], None], told: str, tmp_path: Path
) -> None:
    leaves = Leaves(tmp_path / "mark", leave)
    pipeline = es.Pipeline("leaving-at-once")
    pipeline.source(es.Range(10, batch=1)).process(leaves, name="leave").collect()
    result = pipeline.run(checkpoint=es.Coordinated(every="200ms"), master=MASTER)
    assert result.collected() == list(range(10))
    (report,) = result.recoveries
    assert told in report.what


@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt])
def test_an_operator_that_wants_to_leave_is_named_with_its_record(leaving: type) -> None:
    def leave(record: int) -> int:
        if record == 3:
            raise leaving()
        return record

    pipeline = es.Pipeline("leaving")
    pipeline.source(es.Range(10, batch=1)).map(leave, name="leave").collect()
    with pytest.raises(es.RunFailed, match="'leave'") as caught:
        pipeline.run(master=MASTER, max_restarts=1)
    assert leaving.__name__ in str(caught.value) and "3" in str(caught.value)
