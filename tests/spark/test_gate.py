"""What a Spark task carries is worth nothing to who reads it, and strangers cannot fill our memory."""

import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import cloudpickle
import pytest
import zmq

import everstream as es
from everstream.core.ids import HostId
from everstream.errors import EnvironmentFault
from everstream.spark import endpoints, gate
from everstream.spark.endpoints import PART_BYTES, Doors, RunKeys, in_parts
from everstream.spark.gate import KNOCK_BYTES, Admission, Gate, Ticket, let_in
from everstream.spark.job import HostsJob
from tests.spark.running import Notes, run


class Kept:
    """A gate with somebody who answers at it."""

    def __init__(self, always_tcp: bool) -> None:
        self.always_tcp = always_tcp
        self.doors = Doors(RunKeys.make(), "127.0.0.1", always_tcp=always_tcp)
        self.gate = Gate(self.doors, Admission(self.doors.keys), self._is_running)
        self.running = {7: 0, 8: 1}
        """Spark's tasks, and the hosts they are for."""
        self._news: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _is_running(self, host: HostId, task: int) -> bool:
        return self.running.get(task) == host

    def _answer(self) -> None:
        while not self._stop.is_set():
            if self.gate.socket.poll(20):
                self._news += self.gate.answer()

    def knock(self, ticket: Ticket, host: int = 0, task: int = 7) -> Admission:
        return let_in(ticket, HostId(host), task, always_tcp=self.always_tcp, patience_s=60)

    def news(self) -> list[str]:
        """All there were; from here on, nobody answers."""
        self._stop.set()
        self._thread.join()
        return self._news

    def close(self) -> None:
        self.news()
        self.gate.close()
        self.doors.close()


@pytest.fixture(params=["unix socket", "tcp"])
def kept(request: pytest.FixtureRequest) -> Iterator[Kept]:
    kept = Kept(always_tcp=request.param == "tcp")
    yield kept
    kept.close()


def test_a_ticket_is_good_for_one_knock_of_each_task(kept: Kept) -> None:
    captured = pickle.loads(pickle.dumps(kept.gate.ticket))
    assert kept.knock(captured).keys == kept.doors.keys
    assert kept.knock(captured, host=1, task=8).keys == kept.doors.keys
    for task in (7, 7, 8):
        with pytest.raises(EnvironmentFault, match=f"task {task} of Spark was used before"):
            kept.knock(captured, task=task)
    told = [text for text in kept.news() if "Somebody may have read" in text]
    assert len(told) == 2, "one for each ticket that came again, however often it comes"


def test_a_host_whose_answer_was_lost_is_let_in_when_it_knocks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(always_tcp=True)
    ask, lost = gate._answer_to, []

    def loses_the_first(*knock: Any) -> bytes | None:
        answer = ask(*knock)
        lost.append(answer)
        return None if len(lost) == 1 else answer

    monkeypatch.setattr(gate, "_answer_to", loses_the_first)
    assert kept.knock(kept.gate.ticket).keys == kept.doors.keys
    assert len(lost) == 2
    with pytest.raises(EnvironmentFault, match="used before"):
        kept.knock(kept.gate.ticket)
    assert ["used before" in text for text in kept.news()] == [True], "none of the second knock"
    kept.close()


def test_nobody_comes_in_for_a_task_that_spark_does_not_run(kept: Kept) -> None:
    for host, task in ((0, 9), (1, 7), (2**31, 8)):
        with pytest.raises(EnvironmentFault, match=f"runs no task {task} for host {host}"):
            kept.knock(kept.gate.ticket, host, task)
    kept.running = {7: 0, 9: 0}
    assert kept.knock(kept.gate.ticket, host=0, task=9).keys == kept.doors.keys, "started again"


def test_who_does_not_know_the_word_is_refused_and_told_of_once(kept: Kept) -> None:
    real = kept.gate.ticket
    for word in (b"", b"guess", real.word[:-1], real.word + b"x"):
        with pytest.raises(EnvironmentFault, match="not of this run"):
            kept.knock(Ticket(real.gate, real.gate_key, word))
    assert kept.knock(real).keys == kept.doors.keys
    assert len(kept.news()) == 1


def test_a_proof_is_good_only_on_the_connection_it_was_made_for() -> None:
    kept = Kept(always_tcp=True)
    try:
        ticket = kept.gate.ticket
        heard: list[bytes] = []
        relay = zmq.Context()
        # Somebody between host and gate, who has no secret key of either, has the host knock at
        # a gate of his own and passes the knock on.
        middle = relay.socket(zmq.ROUTER)
        theirs = RunKeys.make()
        middle.curve_server, middle.curve_secretkey = True, theirs.secret
        port = middle.bind_to_random_port("tcp://127.0.0.1")
        lured = Ticket(
            endpoints.Address("elsewhere", "", f"tcp://127.0.0.1:{port}"),
            theirs.public,
            ticket.word,
        )
        victim = threading.Thread(target=lambda: _refused(kept, lured))
        victim.start()
        who, body = middle.recv_multipart()
        onward = relay.socket(zmq.DEALER)
        onward.linger = 0
        own = RunKeys.make()
        endpoints.connected_to(onward, ticket.gate.tcp or "", server=ticket.gate_key, own=own)
        onward.send(body)
        heard.append(onward.recv())
        middle.send_multipart([who, heard[0]])
        victim.join()
        onward.close()
        middle.close(linger=0)
        relay.term()
        assert heard[0].startswith(b"0")
        assert kept.knock(ticket).keys == kept.doors.keys
    finally:
        kept.close()


def _refused(kept: Kept, ticket: Ticket) -> None:
    with pytest.raises(EnvironmentFault, match="did not let host 0 in"):
        kept.knock(ticket)


def test_what_is_shown_of_a_ticket_does_not_hold_its_word(kept: Kept) -> None:
    ticket = kept.gate.ticket
    assert repr(ticket.word) not in repr(ticket)
    assert kept.doors.keys.secret.decode() not in repr(Admission(kept.doors.keys))


def test_a_captured_task_holds_no_key_and_cannot_join_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[RunKeys] = []
    captured: list[bytes] = []
    make, begin, is_running = RunKeys.make, HostsJob.__init__, HostsJob.is_running
    started: dict[HostId, int] = {}
    """The task of each host, which Spark has numbered."""

    def remembering() -> RunKeys:
        made.append(make())
        return made[-1]

    def capturing(self: HostsJob, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        captured.append(cloudpickle.dumps(named["task"]))

    def noting(self: HostsJob, host: HostId, task: int) -> bool:
        found = is_running(self, host, task)
        if found:
            started.setdefault(host, task)
        return found

    monkeypatch.setattr(RunKeys, "make", staticmethod(remembering))
    monkeypatch.setattr(HostsJob, "__init__", capturing)
    monkeypatch.setattr(HostsJob, "is_running", noting)
    refusals: list[str] = []

    def join() -> None:
        task = pickle.loads(captured[0])
        for host, used in started.items():
            for number in (used, used + 100):
                with pytest.raises(EnvironmentFault) as refused:
                    let_in(task.ticket, host, number, always_tcp=True, patience_s=60)
                refusals.append(str(refused.value))

    class Replaying(Notes):
        thread: threading.Thread | None = None

        def progress(self, snapshot: Any) -> None:
            if self.thread is None and snapshot.phase.name == "RUNNING":
                self.thread = threading.Thread(target=join)
                self.thread.start()

    notes = Replaying()
    pipeline = es.Pipeline("captured")
    numbers = pipeline.source(es.Paced(es.Range(10_000_000, column="n"), rate=1000))
    numbers.key_by("n").map(lambda row: row["n"], name="copy", shards=1).collect()
    stranger = run(
        pipeline,
        transport="tcp",
        workers=2,
        listener=notes,
        until=lambda _: notes.thread is not None and not notes.thread.is_alive(),
    )
    secrets = [bytes(keys.secret) for keys in made]
    assert len(refusals) == 2 * len(started) > 0
    assert len(secrets) >= 2 and not any(secret in captured[0] for secret in secrets)
    assert any("used before" in text for text in notes.texts), "and the user is told"
    assert stranger.recoveries == []


# Strangers.

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
LARGE_COMMAND = 6


def accepted(address: str, claimed_bytes: int, sent_bytes: int) -> int:
    """How much of one huge handshake command is taken from a stranger before he is hung up on."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    taken = 0
    with socket.create_connection((host, int(port)), timeout=60) as stranger:
        stranger.sendall(GREETING)
        received = 0
        while received < len(GREETING):
            received += len(stranger.recv(len(GREETING) - received))
        stranger.sendall(struct.pack(">BQ", LARGE_COMMAND, claimed_bytes))
        with suppress(ConnectionError):
            while taken < sent_bytes:
                taken += stranger.send(bytes(1 << 20))
    return taken


def test_a_stranger_is_hung_up_on_before_he_fills_our_memory() -> None:
    doors = Doors(RunKeys.make(), "127.0.0.1", always_tcp=True)
    closed = Gate(doors, Admission(doors.keys), lambda host, task: False)
    inbox, address = doors.listen(zmq.PULL, "inbox")
    assert address.tcp is not None and closed.ticket.gate.tcp is not None
    huge = 64 << 20
    # What the system keeps on both sides of a connection counts as taken; so more than that is sent.
    assert accepted(address.tcp, huge, huge) < huge // 2
    assert accepted(closed.ticket.gate.tcp, KNOCK_BYTES + 1, huge) < huge // 2
    inbox.close()
    closed.close()
    doors.close()


def test_members_send_what_is_larger_than_a_part_in_several() -> None:
    keys = RunKeys.make()
    inside, friend = (Doors(keys, "127.0.0.1", always_tcp=True) for _ in range(2))
    inbox, address = inside.listen(zmq.PULL, "inbox")
    inbox.rcvtimeo = 60_000
    pushing = friend.connect(zmq.PUSH, address)
    large = b"0123456789abcdef" * (PART_BYTES // 8) + b"end"
    assert [len(part) for part in in_parts(large)] == [PART_BYTES, PART_BYTES, 3]
    pushing.send_multipart(in_parts(large))
    assert b"".join(inbox.recv_multipart()) == large
    pushing.close()
    inbox.close()
    friend.close()
    inside.close()
