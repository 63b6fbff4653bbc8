"""A run in the background: looked at, tuned, checkpointed and stopped through its handle."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.orders import Outcome, Phase
from everstream.engine.handle import NOT_STARTED, RunHandle
from everstream.engine.requests import CheckpointRequests
from everstream.engine.slot_sharing import Share
from everstream.engine.spark.context import make_context
from everstream.events import Progressed, SettingsChanged, StartDelayed
from everstream.state.blobs import Blobs
from tests.engine.tasks.running import MASTER, Notes

PATIENCE = 60


class Until(Notes):
    """Waits until a run has said what is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = threading.Condition()
        self._newest = NOT_STARTED

    def on_event(self, event: es.RunEvent) -> None:
        with self._heard:
            super().on_event(event)
            if isinstance(event, Progressed):
                self._newest = event.status
            self._heard.notify_all()

    def read(self, records: int) -> None:
        self._wait(lambda: self._newest.records_read >= records)

    def told(self, event: es.RunEvent) -> None:
        """This event, whenever it was sent."""
        self._wait(lambda: any(replace(known, at=0.0) == event for known in self.events))

    def _wait(self, so_far: Callable[[], bool]) -> None:
        with self._heard:
            assert self._heard.wait_for(so_far, PATIENCE), (self._newest, self.texts)


class Steered:
    """In place of whoever drives a run: keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.stopping = threading.Event()

    def request_stop(self, reason: str) -> None:
        self.told.append(reason)
        self.stopping.set()

    def tune(self, wishes: Mapping[str, str]) -> None:
        self.told.append(wishes)

    def ask_checkpoint(self) -> Future[int]:
        raise AssertionError("nobody asked for that")

    @property
    def blobs(self) -> Blobs:
        raise AssertionError("nobody asked for that")


def endless(name: str) -> es.Pipeline:
    """Far more records than anybody waits for, a thousand a second."""
    pipeline = es.Pipeline(name)
    return pipeline.source(es.Paced(es.Range(10**9), 1000), name="numbers").collect()


def started(pipeline: es.Pipeline, listener: es.Listener, **options: Any) -> RunHandle:
    every = es.Coordinated(every="10m")
    return pipeline.start(
        **{"master": MASTER, "workers": 1, "checkpoint": every, "listener": listener, **options}
    )


def test_a_run_is_looked_at_tuned_checkpointed_and_stopped(tmp_path: Path) -> None:
    heard = Until()
    with started(endless("steered"), heard, store=tmp_path) as run:
        assert "steered" in repr(run) and not run.ended
        heard.read(1)
        seen = run.status().records_read
        epoch = run.checkpoint(PATIENCE)
        assert epoch == 1, "no other has been due"
        assert run.savepoint("kept", PATIENCE).epoch == 2
        assert run.status().phase is Phase.RUNNING
        run.tune(frequency=200_000)
        heard.told(SettingsChanged({"numbers.pattern": "200000"}))
        with pytest.raises(es.UserError, match="no setting 'batch'"):
            run.tune(batch=3)
        with pytest.raises(TimeoutError, match="it continues"):
            run.wait(timeout=0.01)
        assert not run.ended
    result = run.wait()
    assert result.outcome is Outcome.STOPPED and run.ended
    assert run.status().phase is Phase.DONE
    assert result.checkpoints[0].epoch == 1
    (first,) = (r for r in result.checkpoints[0].records.values() if "numbers" in r.counts)
    assert first.counts["numbers"][1] >= seen, "what was seen before is in the checkpoint"
    with pytest.raises(es.RunFailed, match="takes no more checkpoints"):
        run.checkpoint()
    with pytest.raises(es.UserError, match="the run has ended"):
        run.tune(frequency=1)


@pytest.mark.parametrize(
    "options",
    [{"checkpoint": es.Uncoordinated(every="10m")}, {"engine": "microbatch", "workers": None}],
    ids=["uncoordinated", "microbatch"],
)
def test_other_protocols_and_the_other_engine_checkpoint_when_asked(
    options: dict[str, Any],
) -> None:
    heard = Until()
    with started(endless("asked"), heard, **options) as run:
        heard.read(1)
        assert run.checkpoint(PATIENCE) >= 1


def test_wishes_from_before_there_is_a_driver_are_told_to_it() -> None:
    handle = RunHandle(endless("early").graph, True, lambda run: pytest.fail("run"))
    handle.tune(frequency=5)
    handle.stop()
    assert handle.stop_requested and handle.status() == NOT_STARTED
    handle.attach(driver := Steered())
    assert driver.told == [{"frequency": "5"}, "requested"]


@pytest.mark.spark("only Spark has slots")
def test_two_pipelines_run_at_once_and_each_has_slots_of_its_own() -> None:
    heard = Until(), Until()
    one, other = endless("one"), endless("other")
    with started(one, heard[0], workers=2) as first, started(other, heard[1]) as second:
        heard[0].read(1)
        heard[1].read(1)
        assert not first.ended and not second.ended
        with pytest.raises(es.UserError, match="'one' is already running in this process"):
            started(one, Notes()).wait()
        with pytest.raises(es.UserError, match=r"'one', 'other' are running .* 'local\[6,"):
            endless("third").run(master="local[7]")
        with started(endless("rest"), rest := Until(), workers=3):
            rest.read(1)
            full = endless("full").start(
                master=MASTER, listener=(notes := Notes()), start_timeout="1s"
            )
            with pytest.raises(es.UserError, match=r"has 6 slot.*'one' 2, 'other' 1, 'rest' 3"):
                full.wait()
            assert {*map(type, notes.events)} == {StartDelayed}
    assert [run.wait().outcome for run in (first, second)] == [Outcome.STOPPED] * 2


def test_a_store_serves_one_run_of_a_process_at_a_time(tmp_path: Path) -> None:
    with started(endless("mine"), heard := Until(), store=tmp_path):
        heard.read(1)
        with pytest.raises(es.UserError, match="another run of this process is running on it"):
            endless("yours").run(master=MASTER, workers=1, store=tmp_path)


def test_what_makes_a_run_fail_is_raised_where_somebody_waits() -> None:
    def fail(number: int) -> int:
        raise ValueError("of no use")

    pipeline = es.Pipeline("failing").source(es.Range(3)).map(fail).collect()
    run = pipeline.start(master=MASTER, workers=1, listener=Notes())
    with pytest.raises(es.RunFailed, match="of no use"):
        run.wait()
    with pytest.raises(es.RunFailed, match="takes no more checkpoints"):
        run.checkpoint()


def test_a_wrong_pipeline_fails_at_the_start() -> None:
    with pytest.raises(es.UserError):
        es.Pipeline("empty").start()
    with pytest.raises(es.UserError, match="has no permanent store"):
        RunHandle(endless("without").graph, True, lambda run: pytest.fail("run")).savepoint("kept")
    with pytest.raises(es.UserError, match="takes no checkpoints"):
        RunHandle(endless("without").graph, False, lambda run: pytest.fail("run")).checkpoint()


def test_another_master_is_not_given_while_others_run() -> None:
    make_context(MASTER, "test")
    busy = (Share("busy", 1, endless("busy").graph),)
    with pytest.raises(es.UserError, match="'busy' is running in this process on master"):
        make_context("local[1]", "test", busy)


def test_everybody_who_asks_is_answered_by_the_second_checkpoint() -> None:
    asking = CheckpointRequests()
    first = asking.ask()
    assert asking.is_due
    asking.begin()
    second = asking.ask()
    assert not asking.is_due, "one is on its way"
    asking.answer(1)
    assert first.result(0) == 1 and not second.done() and asking.is_due
    asking.begin()
    third = asking.ask()
    asking.end(None)
    for left in (second, third):
        with pytest.raises(es.RunFailed, match="before this checkpoint"):
            left.result(0)
    with pytest.raises(es.RunFailed, match="no more checkpoints"):
        asking.ask().result(0)


def test_ctrl_c_stops_the_run_that_is_waited_for() -> None:
    def perform(handle: RunHandle) -> Any:
        while signal.getsignal(signal.SIGINT) is before:
            time.sleep(0.001)  # nobody waits yet
        os.kill(os.getpid(), signal.SIGINT)
        driver.stopping.wait(PATIENCE)
        return "stopped"

    before, driver = signal.getsignal(signal.SIGINT), Steered()
    handle = RunHandle(endless("interrupted").graph, True, perform)
    handle.attach(driver)
    assert handle.start().wait() == "stopped"  # type: ignore[comparison-overlap]
    assert driver.told == ["Ctrl-C"]


PROGRAM = """
import everstream as es
from everstream.engine.handle import RunHandle

def perform(handle):
    if "fails" in handle.name:
        raise es.RunFailed("it broke")
    while not handle.stop_requested:
        pass
    print(handle.name, "was stopped")

if __name__ == "__main__":
    for name in ("goes-on", "fails"):
        pipeline = es.Pipeline(name).source(es.Range(3)).collect()
        run = RunHandle(pipeline.graph, True, perform).start()
    while not run.ended:
        pass
"""


def test_a_program_that_ends_stops_its_runs_and_says_what_nobody_has_heard() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "goes-on was stopped\n", done.stderr
    assert "'goes-on': the program is ending: stopping the run" in done.stderr
    assert "'fails': it broke" in done.stderr
