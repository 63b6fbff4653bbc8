"""Real processes, SIGKILL and spares: one takes the place of the dead at once, and nothing is amiss."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import everstream as es
from everstream.core.ids import TaskNumber
from tests.sampling import sampled

from .conftest import MASTER, Killer, expected, kill, killable, pid_of, shown
from .places import store_of

PROTOCOLS = {
    "aligned": es.Coordinated(every="200ms"),
    "unaligned": es.Coordinated(every="200ms", mode="unaligned"),
    "uncoordinated": es.Uncoordinated(every="200ms"),
    "hmnr": es.CommunicationInduced(every="200ms"),
}


def start(folder: Path, listener: Killer, checkpoint: Any, spares: int) -> Any:
    return killable(folder).start(
        checkpoint=checkpoint,
        store=store_of(folder),
        master=MASTER,
        workers=6 - spares,
        spares=spares,
        max_restarts=10,
        listener=listener,
    )


def standing_by(handle: Any) -> list[int]:
    """The processes that wait for a place."""
    driver = handle._driver
    numbers = driver.coordinator._run.workers.spares if driver is not None else ()
    found = [driver.attempts.process(TaskNumber(number)) for number in numbers]
    return [one.hello.pid for one in found if one is not None]


@pytest.mark.parametrize("protocol", sampled(["aligned", "uncoordinated", "hmnr"], ["aligned"]))
def test_a_process_that_stood_by_takes_the_place_of_a_killed_one(
    tmp_path: Path, protocol: str
) -> None:
    killed: list[float] = []

    def at_epoch(epoch: int) -> None:
        if epoch >= 4 and not killed and standing_by(handle):
            killed.append(time.time())
            kill(pid_of(tmp_path, "middle"))

    started: list[float] = []

    class Watching(Killer):
        def epoch(self, epoch: int) -> None:
            super().epoch(epoch)
            if killed and not started and self.expected_failures == 1:
                with_place = psutil.Process(pid_of(tmp_path, "middle"))
                started.append(with_place.create_time())

    listener = Watching(tmp_path)
    handle = start(tmp_path, listener, PROTOCOLS[protocol], spares=1)
    listener.at_epoch = at_epoch
    result = handle.wait()
    assert shown(tmp_path) == expected()
    [report] = result.recoveries
    assert report.restarted_s == report.detected_s, "a spare was there when it was missed"
    assert started and started[0] < killed[0], "it had been there before"


def test_spares_die_too_and_workers_one_after_the_other(tmp_path: Path) -> None:
    """A spare is killed, which harms nobody, then three workers, whose tasks become spares in turn."""
    handle = killable(tmp_path).start(
        checkpoint=PROTOCOLS["aligned"],
        store=store_of(tmp_path),
        master=MASTER,
        workers=4,
        spares=2,
        max_restarts=3,
        listener=(listener := Killer(tmp_path, failures=3)),
    )
    stood_by: list[int] = []

    order = ["front", "middle", "back"]

    def at_epoch(epoch: int) -> None:
        there = standing_by(handle)
        if len(there) < 2:
            return  # killed when the next ones stand by
        if not stood_by:
            stood_by.append(there[0])
            kill(there[0])
        elif order and listener.failures == 3 - len(order):
            kill(pid_of(tmp_path, order.pop(0)))

    listener.at_epoch = at_epoch
    result = handle.wait()
    assert shown(tmp_path) == expected()
    assert len(result.recoveries) == 3, "the spare's death is none"
    assert listener.of(es.events.SpareLost)


@pytest.mark.spark("only Spark has slots")
def test_without_a_slot_for_it_a_spare_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(es.UserError, match="and its spares 6: run it on master 'local"):
        killable(tmp_path).run(master=MASTER, spares=6)


def test_micro_batches_have_no_place_for_a_spare(tmp_path: Path) -> None:
    with pytest.raises(es.UserError, match='spares= is for engine="tasks"'):
        killable(tmp_path).run(engine="microbatch", spares=1)
