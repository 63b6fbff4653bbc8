"""A worker sleeps until something can happen by itself, and never past it."""

import math
import os
import threading
from collections.abc import Iterator

import pytest
import zmq

from everstream.engine.continuous.transport.poller import Poller, sleep_s


class Runner:
    def __init__(self, ready_at_s: float = 0.0, timer_in_s: float = math.inf) -> None:
        self.ready_at_s = ready_at_s
        self._timer_in_s = timer_in_s

    def timer_in_s(self) -> float:
        return self._timer_in_s


def test_a_source_that_becomes_ready_after_it_was_asked_is_not_slept_past() -> None:
    assert sleep_s([Runner(ready_at_s=10.0)], asked_s=9.999, now_s=10.001, at_most_s=0.1) == 0


def test_a_source_is_waited_for_until_it_is_ready() -> None:
    assert sleep_s(
        [Runner(ready_at_s=10.05)], asked_s=10.0, now_s=10.01, at_most_s=0.1
    ) == pytest.approx(0.04)
    assert sleep_s(
        [Runner(ready_at_s=10.0002)], asked_s=9.9, now_s=10.0, at_most_s=0.1
    ) == pytest.approx(0.0002)


def test_whoever_was_ready_when_asked_and_had_nothing_to_do_waits_for_others() -> None:
    assert sleep_s([Runner(ready_at_s=9.0)], asked_s=10.0, now_s=10.0, at_most_s=0.1) == 0.1


def test_a_timer_that_is_due_is_called_at_once() -> None:
    assert sleep_s([Runner(timer_in_s=-0.001)], asked_s=10.0, now_s=10.0, at_most_s=0.1) == 0


def test_the_first_one_counts() -> None:
    runners = [Runner(ready_at_s=10.05), Runner(timer_in_s=0.02), Runner(ready_at_s=10.03)]
    assert sleep_s(runners, asked_s=10.0, now_s=10.0, at_most_s=0.1) == 0.02


@pytest.fixture
def sockets() -> Iterator[tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]]:
    context = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receiver.bind("inproc://bed")
    sender.connect("inproc://bed")
    yield receiver, sender
    for socket in (receiver, sender):
        socket.close(linger=0)
    context.term()


Sockets = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.mark.parametrize("fine", [True, False])
def test_what_has_come_is_found_without_sleeping(sockets: Sockets, fine: bool) -> None:
    receiver, sender = sockets
    bed = Poller([receiver])
    bed._fine = fine
    sender.send(b"1")
    sender.send(b"2")
    assert receiver in bed.wait(3600.0)
    receiver.recv()
    assert receiver in bed.wait(3600.0), "the second one wakes nobody by itself"
    receiver.recv()
    assert bed.wait(0.0) == {} == bed.wait(0.0001)


@pytest.mark.parametrize("fine", [True, False])
def test_whoever_sleeps_is_woken_by_sockets_and_pipes(sockets: Sockets, fine: bool) -> None:
    receiver, sender = sockets
    wake_fd, write_fd = os.pipe()
    bed = Poller([receiver, wake_fd])
    bed._fine = fine
    timer = threading.Timer(0.02, sender.send, [b"1"])
    timer.start()
    assert receiver in bed.wait(3600.0)
    timer.join()
    receiver.recv()
    threading.Timer(0.02, os.write, [write_fd, b"!"]).start()
    assert wake_fd in bed.wait(3600.0)
    os.close(wake_fd)
    os.close(write_fd)
