"""The key exchange: how a worker, and no other process, gets the keys of its run.

Anyone who reads Spark's traffic can read what a Spark task carries. So a task carries no key but
a ticket: the address of the key exchange, its public key, and a secret that is good for one request
of each task that Spark has just started. A worker sends its request over a connection that only the
key exchange can decrypt, proves that it knows the secret, and gets the keys over that connection.
An eavesdropper learns nothing. A stolen ticket comes too late, and the user is warned.
"""

import hmac
import json
import os
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zmq

from everstream.core.ids import TaskNumber
from everstream.engine.continuous.transport.endpoints import (
    Address,
    RunKeys,
    SocketFactory,
    connected_to,
    this_machine,
)
from everstream.errors import EnvironmentFault
from everstream.state.signing import StoreKey

KNOCK_BYTES = 1024
"""More than a request and its handshake need; the limit for clients that are not admitted yet."""
PATIENCE_S = 30.0
"""The minimum time that a worker waits to be admitted."""
AGAIN_AFTER_S = 3.0
_KNOCK = struct.Struct(">IQ32s")
_MEANING = b"everstream request 1"
_READ = (
    "Someone may have read what Spark sends to the workers: encrypt Spark's traffic "
    "(spark.network.crypto.enabled)"
)


@dataclass(frozen=True)
class Ticket:
    """The contents of a task: enough for one request."""

    key_exchange: Address
    gate_key: bytes
    """Public."""
    word: bytes = field(repr=False)


@dataclass(frozen=True)
class Admission:
    """What a worker gets from the key exchange."""

    keys: RunKeys
    store_key: StoreKey | None = None
    """For workers to verify what they read from the store, and to sign what they write."""

    def to_bytes(self) -> bytes:
        keys = [self.keys.public.decode(), self.keys.secret.decode()]
        words = [] if self.store_key is None else self.store_key.words()
        return json.dumps({"keys": keys, "store_key": words}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Admission":
        said = json.loads(data)
        public, secret = said["keys"]
        words = [word.encode() for word in said["store_key"]]
        return cls(RunKeys(public.encode(), secret.encode()), StoreKey(words) if words else None)


class KeyExchange:
    """The driver's side: admits each task once."""

    def __init__(
        self,
        sockets: SocketFactory,
        admission: Admission,
        is_running: Callable[[TaskNumber, int], bool],
    ) -> None:
        """is_running: whether this task was started under this number and has not ended."""
        self._keys = RunKeys.make()
        self._is_running = is_running
        self._admission = admission
        self._used: dict[int, bytes] = {}
        self._told: set[str] = set()
        self.socket, address = sockets.listen(
            zmq.ROUTER, "key_exchange", keys=self._keys, anyone=True, largest_bytes=KNOCK_BYTES
        )
        self.ticket = Ticket(address, self._keys.public, secrets.token_bytes(32))

    def answer(self) -> list[str]:
        """Admit workers, and return warnings for the user about refused requests."""
        news: list[str] = []
        while True:
            try:
                who, *parts = self.socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return news
            trouble = self._trouble_with(parts)
            if trouble is None:
                self.socket.send_multipart([who, b"1" + self._admission.to_bytes()])
                continue
            self.socket.send_multipart([who, b"0" + trouble.encode()])
            if trouble not in self._told:
                self._told.add(trouble)
                news.append(f"a connection to this run was refused: {trouble}")

    def close(self) -> None:
        self.socket.close()

    def _trouble_with(self, parts: list[zmq.Frame]) -> str | None:
        """Why this request is refused; None uses up the ticket of its task."""
        if len(parts) != 1 or len(parts[0]) != _KNOCK.size:
            return "the message is not a valid request"
        number, task, proof = _KNOCK.unpack(parts[0].bytes)
        key = _key_of(parts[0])
        if not hmac.compare_digest(proof, _proof(self.ticket, number, task, key)):
            return "the ticket does not belong to this run"
        if key and self._used.get(task) == key:
            return None  # a worker that missed our answer: no one else has its keys
        if task in self._used:
            return f"the ticket of Spark task {task} was already used. {_READ}"
        if not self._is_running(TaskNumber(number), task):
            return f"no task {task} was started for worker {number}. {_READ}"
        self._used[task] = key
        return None


def let_in(
    ticket: Ticket, number: TaskNumber, task: int, *, always_tcp: bool, patience_s: float
) -> Admission:
    """The worker's side: request, and wait for the keys."""
    target = ticket.key_exchange.seen_from("" if always_tcp else this_machine())
    own = RunKeys.make() if target.startswith("tcp") else None
    request = _KNOCK.pack(number, task, _proof(ticket, number, task, own.public if own else b""))
    answer, parent = None, os.getppid()
    until_s = time.monotonic() + max(patience_s, PATIENCE_S)
    # A unix socket loses nothing. A network can: send the request again, over a new connection.
    while answer is None and time.monotonic() < until_s and os.getppid() == parent:
        answer = _answer_to(request, target, ticket.gate_key, own)
    if answer is None:
        raise EnvironmentFault(
            f"worker {number} sent a request to {target} and the driver did not answer: check that "
            "the machines of the workers can reach the driver's machine at every port"
        )
    if answer[:1] != b"1":
        raise EnvironmentFault(f"the driver did not admit worker {number}: {answer[1:].decode()}")
    return Admission.from_bytes(answer[1:])


def _answer_to(request: bytes, target: str, gate_key: bytes, own: RunKeys | None) -> bytes | None:
    """The answer of the key exchange to one request; None if there is none."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        connected_to(socket, target, server=gate_key, own=own)
        socket.send(request)
        patience_s = AGAIN_AFTER_S if own else PATIENCE_S
        return socket.recv() if socket.poll(int(patience_s * 1000)) else None
    finally:
        socket.close(linger=0)
        context.term()


def _proof(ticket: Ticket, number: int, task: int, key: bytes) -> bytes:
    """Proves that the owner of this connection's key knows the secret."""
    said = b"|".join([_MEANING, str(number).encode(), str(task).encode(), key, ticket.gate_key])
    return hmac.digest(ticket.word, said, "sha256")


def _key_of(frame: zmq.Frame) -> bytes:
    """The public key of the other end, from the handshake; empty on a unix socket."""
    try:
        return str(frame.get("User-Id")).encode()
    except zmq.ZMQError:
        return b""
