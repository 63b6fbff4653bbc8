"""What a Spark task carries is worth nothing to who reads it, and strangers cannot fill our memory."""

import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import zmq

import everstream as es
from everstream.core.ids import WorkerId
from everstream.engine.continuous.transport import connection_guard, endpoints, key_exchange
from everstream.engine.continuous.transport.connection_guard import Turnstile
from everstream.engine.continuous.transport.endpoints import (
    PART_BYTES,
    RunKeys,
    SocketFactory,
    in_parts,
)
from everstream.engine.continuous.transport.key_exchange import (
    KNOCK_BYTES,
    Admission,
    KeyExchange,
    Ticket,
    let_in,
)
from everstream.engine.continuous.worker.worker import WorkerTask
from everstream.engine.tasks.workers import SparkTask, SparkWorkers
from everstream.errors import EnvironmentFault
from tests.engine.tasks.running import Notes, run


class Kept:
    """A key_exchange with somebody who answers at it."""

    def __init__(self, always_tcp: bool) -> None:
        self.always_tcp = always_tcp
        self.sockets = SocketFactory(RunKeys.make(), "127.0.0.1", always_tcp=always_tcp)
        self.key_exchange = KeyExchange(
            self.sockets, Admission(self.sockets.keys), self._is_running
        )
        self.running = {7: 0, 8: 1}
        """Spark's tasks, and the workers they are for."""
        self._news: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _is_running(self, worker: WorkerId, task: int) -> bool:
        return self.running.get(task) == worker

    def _answer(self) -> None:
        while not self._stop.is_set():
            if self.key_exchange.socket.poll(20):
                self._news += self.key_exchange.answer()

    def request(self, ticket: Ticket, worker: int = 0, task: int = 7) -> Admission:
        return let_in(ticket, WorkerId(worker), task, always_tcp=self.always_tcp, patience_s=60)

    def news(self) -> list[str]:
        """All there were; from here on, nobody answers."""
        self._stop.set()
        self._thread.join()
        return self._news

    def close(self) -> None:
        self.news()
        self.key_exchange.close()
        self.sockets.close()


@pytest.fixture(params=["unix socket", "tcp"])
def kept(request: pytest.FixtureRequest) -> Iterator[Kept]:
    kept = Kept(always_tcp=request.param == "tcp")
    yield kept
    kept.close()


def test_a_ticket_is_good_for_one_knock_of_each_task(kept: Kept) -> None:
    captured = pickle.loads(pickle.dumps(kept.key_exchange.ticket))
    assert kept.request(captured).keys == kept.sockets.keys
    assert kept.request(captured, worker=1, task=8).keys == kept.sockets.keys
    for task in (7, 7, 8):
        with pytest.raises(EnvironmentFault, match=f"Spark task {task} was already used"):
            kept.request(captured, task=task)
    told = [text for text in kept.news() if "Someone may have read" in text]
    assert len(told) == 2, "one for each ticket that came again, however often it comes"


def test_a_worker_whose_answer_was_lost_is_let_in_when_it_knocks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(always_tcp=True)
    ask, lost = key_exchange._answer_to, []

    def loses_the_first(*request: Any) -> bytes | None:
        answer = ask(*request)
        lost.append(answer)
        return None if len(lost) == 1 else answer

    monkeypatch.setattr(key_exchange, "_answer_to", loses_the_first)
    assert kept.request(kept.key_exchange.ticket).keys == kept.sockets.keys
    assert len(lost) == 2
    with pytest.raises(EnvironmentFault, match="already used"):
        kept.request(kept.key_exchange.ticket)
    assert ["already used" in text for text in kept.news()] == [True], "none of the second request"
    kept.close()


def test_nobody_comes_in_for_a_task_that_spark_does_not_run(kept: Kept) -> None:
    for worker, task in ((0, 9), (1, 7), (2**31, 8)):
        with pytest.raises(
            EnvironmentFault, match=f"no task {task} was started for worker {worker}"
        ):
            kept.request(kept.key_exchange.ticket, worker, task)
    kept.running = {7: 0, 9: 0}
    assert kept.request(kept.key_exchange.ticket, worker=0, task=9).keys == kept.sockets.keys, (
        "started again"
    )


def test_who_does_not_know_the_word_is_refused_and_told_of_once(kept: Kept) -> None:
    real = kept.key_exchange.ticket
    for word in (b"", b"guess", real.word[:-1], real.word + b"x"):
        with pytest.raises(EnvironmentFault, match="does not belong to this run"):
            kept.request(Ticket(real.key_exchange, real.gate_key, word))
    assert kept.request(real).keys == kept.sockets.keys
    assert len(kept.news()) == 1


def test_a_proof_is_good_only_on_the_connection_it_was_made_for() -> None:
    kept = Kept(always_tcp=True)
    try:
        ticket = kept.key_exchange.ticket
        heard: list[bytes] = []
        relay = zmq.Context()
        # Somebody between worker and key_exchange, who has no secret key of either, has the worker request at
        # a key_exchange of his own and passes the request on.
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
        endpoints.connected_to(
            onward, ticket.key_exchange.tcp or "", server=ticket.gate_key, own=own
        )
        onward.send(body)
        heard.append(onward.recv())
        middle.send_multipart([who, heard[0]])
        victim.join()
        onward.close()
        middle.close(linger=0)
        relay.term()
        assert heard[0].startswith(b"0")
        assert kept.request(ticket).keys == kept.sockets.keys
    finally:
        kept.close()


def _refused(kept: Kept, ticket: Ticket) -> None:
    with pytest.raises(EnvironmentFault, match="did not admit worker 0"):
        kept.request(ticket)


def test_what_is_shown_of_a_ticket_does_not_hold_its_word(kept: Kept) -> None:
    ticket = kept.key_exchange.ticket
    assert repr(ticket.word) not in repr(ticket)
    assert kept.sockets.keys.secret.decode() not in repr(Admission(kept.sockets.keys))


@pytest.mark.spark("looks into the task that Spark gets")
def test_a_captured_task_holds_no_key_and_cannot_join_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[RunKeys] = []
    captured: list[bytes] = []
    make, begin, is_running = RunKeys.make, SparkWorkers.start, SparkWorkers.is_running
    started: dict[WorkerId, int] = {}
    """The task of each worker, which Spark has numbered."""

    def remembering() -> RunKeys:
        made.append(make())
        return made[-1]

    def capturing(self: SparkWorkers, task: WorkerTask, processes: int) -> None:
        begin(self, task, processes)
        captured.append(cloudpickle.dumps(SparkTask(task)))

    def noting(self: SparkWorkers, worker: WorkerId, task: int) -> bool:
        found = is_running(self, worker, task)
        if found:
            started.setdefault(worker, task)
        return found

    monkeypatch.setattr(RunKeys, "make", staticmethod(remembering))
    monkeypatch.setattr(SparkWorkers, "start", capturing)
    monkeypatch.setattr(SparkWorkers, "is_running", noting)
    refusals: list[str] = []

    def join() -> None:
        task = pickle.loads(captured[0]).task
        for worker, used in started.items():
            for number in (used, used + 100):
                with pytest.raises(EnvironmentFault) as refused:
                    let_in(task.ticket, worker, number, always_tcp=True, patience_s=60)
                refusals.append(str(refused.value))

    class Replaying(Notes):
        thread: threading.Thread | None = None

        def on_event(self, event: es.RunEvent) -> None:
            super().on_event(event)
            match event:
                case es.events.Progressed(status=status) if self.thread is None:
                    if status.phase.name == "RUNNING":
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
    warnings = [note.text for note in notes.of(es.events.Note) if note.topic == "network"]
    assert any("already used" in text for text in warnings), "and the user is told"
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
    sockets = SocketFactory(RunKeys.make(), "127.0.0.1", always_tcp=True)
    closed = KeyExchange(sockets, Admission(sockets.keys), lambda worker, task: False)
    inbox, address = sockets.listen(zmq.PULL, "inbox")
    assert address.tcp is not None and closed.ticket.key_exchange.tcp is not None
    huge = 64 << 20
    # What the system keeps on both sides of a connection counts as taken; so more than that is sent.
    assert accepted(address.tcp, huge, huge) < huge // 2
    assert accepted(closed.ticket.key_exchange.tcp, KNOCK_BYTES + 1, huge) < huge // 2
    inbox.close()
    closed.close()
    sockets.close()


def test_who_sends_endless_small_parts_to_the_gate_is_hung_up_on() -> None:
    """ZeroMQ would keep them all until the last has come."""
    kept = Kept(always_tcp=True)
    context: zmq.Context[Any] = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.linger, stranger.reconnect_ivl = 0, -1
    events = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        ticket = kept.key_exchange.ticket
        target, own = ticket.key_exchange.tcp or "", RunKeys.make()
        endpoints.connected_to(stranger, target, server=ticket.gate_key, own=own)
        stranger.send_multipart([bytes(KNOCK_BYTES // 2)] * 20_000)
        assert events.poll(60_000), "he is hung up on"
        assert kept.request(ticket).keys == kept.sockets.keys, "and workers are let in"
        assert kept.news() == [], "nothing of his message came through"
    finally:
        context.destroy(linger=0)
        kept.close()


class Inside:
    """A unix socket behind a turnstile that counts what comes through."""

    def __init__(self, folder: Path, **bounds: Any) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / "inside"))
        self._listening.listen()
        self._listening.settimeout(60)
        self.turnstile = Turnstile("127.0.0.1", str(folder / "inside"), **bounds)

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Both ends: of who comes, and of who is inside."""
        outside = socket.create_connection(("127.0.0.1", self.turnstile.port), timeout=60)
        inside, _ = self._listening.accept()
        inside.settimeout(60)
        return outside, inside

    def __enter__(self) -> "Inside":
        return self

    def __exit__(self, *_: object) -> None:
        self.turnstile.close()
        self._listening.close()


def all_from(end: socket.socket) -> bytes:
    """What comes until the other side hangs up."""
    data = b""
    with suppress(ConnectionError):
        while more := end.recv(1 << 16):
            data += more
    return data


def test_a_turnstile_passes_on_so_many_bytes_and_hangs_up(tmp_path: Path) -> None:
    with Inside(tmp_path, largest_bytes=1000, longest_s=60) as it:
        outside, inside = it.connect()
        outside.sendall(b"a" * 600)
        assert inside.recv(600, socket.MSG_WAITALL) == b"a" * 600
        inside.sendall(b"answer")
        assert outside.recv(6, socket.MSG_WAITALL) == b"answer"
        with suppress(ConnectionError):
            outside.sendall(b"b" * 10_000_000)
        assert all_from(inside) == b"b" * 400
        assert all_from(outside) == b""
        for end in (outside, inside):
            end.close()


def test_a_connection_through_a_turnstile_ends_in_time(tmp_path: Path) -> None:
    with Inside(tmp_path, largest_bytes=1000, longest_s=0.1) as it:
        outside, inside = it.connect()
        assert all_from(outside) == all_from(inside) == b""
        for end in (outside, inside):
            end.close()


def test_of_too_many_connections_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_guard, "MOST_CONNECTIONS", 2)
    with Inside(tmp_path, largest_bytes=1000, longest_s=60) as it:
        pairs = [it.connect() for _ in range(3)]
        assert all_from(pairs[0][0]) == b""
        for outside, inside in pairs[1:]:
            outside.sendall(b"still here")
            assert inside.recv(10, socket.MSG_WAITALL) == b"still here"
        for pair in pairs:
            for end in pair:
                end.close()


def test_members_send_what_is_larger_than_a_part_in_several() -> None:
    keys = RunKeys.make()
    inside, friend = (SocketFactory(keys, "127.0.0.1", always_tcp=True) for _ in range(2))
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
