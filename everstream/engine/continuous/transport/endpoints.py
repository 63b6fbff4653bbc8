"""Endpoints: unix sockets on one machine, TCP with CURVE keys between machines.

Each run has one key pair. Servers use it and clients must present it; workers get it through the
key exchange, and no other process has it. So data that arrives over TCP is only processed if its
sender belongs to this run. Before a client has presented its key, it can send at most one message
part, and to the key exchange, which is open to anyone, no more than a request needs. Unix sockets
are in folders that only the user's processes can enter.
"""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from everstream.engine.continuous.transport.connection_guard import Turnstile
from everstream.engine.scratch import make_folder

HEARTBEAT_S = 1.0
PART_BYTES = 4 << 20
"""Over a network no part is larger than this, so no receiver has to accept a larger one."""
SLACK_BYTES = 4096
"""What encryption and headers add to a part."""
CONNECTION_BYTES = 4096
"""The total that a client without the run's keys may send over one connection: several requests."""
STRANGER_S = 30.0
"""The maximum lifetime of such a connection, if the limit of silence is not longer."""
GATE = "key_exchange"
"""The authenticator's domain for sockets that are open to anyone."""
WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass(frozen=True)
class RunKeys:
    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> "RunKeys":
        return cls(*zmq.curve_keypair())


@dataclass(frozen=True)
class Address:
    machine: str
    ipc: str
    tcp: str | None

    @property
    def host(self) -> str:
        """The machine's address, without the port."""
        assert self.tcp is not None
        return self.tcp.removeprefix("tcp://").rpartition(":")[0]

    def seen_from(self, machine: str) -> str:
        if machine == self.machine or self.tcp is None:
            return self.ipc
        return self.tcp


def this_machine() -> str:
    """Equal for two processes exactly if they can connect through a unix socket in /tmp."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    identity = boot.read_text().strip() if boot.exists() else ""
    mounts = Path("/proc/self/ns/mnt")
    namespace = os.readlink(mounts) if mounts.exists() else ""
    return f"{socket.gethostname()}/{identity}/{namespace}"


class SocketFactory:
    """Makes the sockets of one process: binds, connects, and keeps the keys private."""

    def __init__(
        self,
        keys: RunKeys,
        interface: str | None = None,
        *,
        always_tcp: bool = False,
        silence_s: float = 10.0,
    ) -> None:
        self.keys = keys
        self.interface = interface
        """Where TCP listens; None for unix sockets only."""
        self.silence_s = silence_s
        """A TCP connection without any traffic for this long is closed."""
        self.machine = os.urandom(8).hex() if always_tcp else this_machine()
        self.context = zmq.Context()
        self.folder = make_folder()
        self._turnstiles: list[Turnstile] = []
        self._authenticator: ThreadAuthenticator | None = None
        if interface is not None:
            self._authenticator = ThreadAuthenticator(self.context)
            self._authenticator.start()
            for domain, accepted in (("*", _Accepted(keys.public)), (GATE, _Accepted())):
                self._authenticator.configure_curve_callback(domain, accepted)

    def listen(
        self,
        kind: int,
        name: str,
        *,
        keys: RunKeys | None = None,
        anyone: bool = False,
        largest_bytes: int = PART_BYTES + SLACK_BYTES,
    ) -> "tuple[zmq.Socket[bytes], Address]":
        """A bound socket and the address at which others reach it.

        keys: use these instead of the run's keys. anyone: accept clients without the run's keys;
        each of their connections may send CONNECTION_BYTES in total. largest_bytes: a client that
        sends a larger part over the network, before or after it has presented its key, is
        disconnected.
        """
        listening: zmq.Socket[bytes] = self._socket(kind)
        ipc = f"ipc://{self.folder}/{name}"
        listening.bind(ipc)
        tcp = None
        if self.interface is not None:
            keys = keys or self.keys
            listening.curve_server = True
            listening.curve_secretkey = keys.secret
            listening.curve_publickey = keys.public
            listening.maxmsgsize = largest_bytes
            listening.handshake_ivl = int(self.silence_s * 1000)
            if anyone:
                listening.zap_domain = GATE.encode()
                inner = f"{self.folder}/{name}-network"
                listening.bind(f"ipc://{inner}")
                turnstile = Turnstile(
                    self.interface,
                    inner,
                    largest_bytes=CONNECTION_BYTES,
                    longest_s=max(self.silence_s, STRANGER_S),
                )
                self._turnstiles.append(turnstile)
                port = turnstile.port
            else:
                port = listening.bind_to_random_port(f"tcp://{self.interface}")
            tcp = f"tcp://{self.interface}:{port}"
        return listening, Address(self.machine, ipc, tcp)

    def connect(
        self, kind: int, address: Address, identity: bytes = b"", *, watched: bool = False
    ) -> "zmq.Socket[bytes]":
        """A socket connected to an address, with heartbeats over TCP.

        watched: its monitor socket reports when the connection comes up and goes down.
        """
        connected: zmq.Socket[bytes] = self._socket(kind)
        if identity:
            connected.identity = identity
        target = address.seen_from(self.machine)
        if self.over_network(address):
            connected.heartbeat_ivl = int(min(HEARTBEAT_S, self.silence_s / 2) * 1000)
            connected.heartbeat_timeout = int(self.silence_s * 1000)
            connected.handshake_ivl = int(self.silence_s * 1000)
        if watched:
            connected.get_monitor_socket(WATCHED)
        own = self.keys if self.over_network(address) else None
        connected_to(connected, target, server=self.keys.public, own=own)
        return connected

    def over_network(self, address: Address) -> bool:
        """Whether a connection to this address leaves the machine, as far as we know."""
        return address.seen_from(self.machine).startswith("tcp")

    def close(self) -> None:
        """All sockets must have been closed before: otherwise ZeroMQ waits forever."""
        for turnstile in self._turnstiles:
            turnstile.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        self.context.destroy(linger=0)
        for left in Path(self.folder).glob("*"):
            left.unlink(missing_ok=True)
        Path(self.folder).rmdir()

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        made = self.context.socket(kind)
        made.linger = 0
        made.set_hwm(0)  # credit limits what is in flight, not ZeroMQ
        return made


def connected_to(
    socket: "zmq.Socket[bytes]", target: str, *, server: bytes, own: RunKeys | None
) -> None:
    """Connect; with our own keys, encrypted for the owner of the server's secret key."""
    if own is not None:
        socket.curve_serverkey = server
        socket.curve_publickey, socket.curve_secretkey = own.public, own.secret
    socket.connect(target)


def in_parts(data: Any) -> list[Any]:
    """These bytes in parts that every socket accepts; large ones are not copied."""
    if len(data) <= PART_BYTES:
        return [data]
    whole = memoryview(data)
    return [whole[start : start + PART_BYTES] for start in range(0, len(whole), PART_BYTES)]


class _Accepted:
    """Accepts clients that present this key; without one, any: their messages are validated."""

    def __init__(self, public: bytes | None = None) -> None:
        self.public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return self.public is None or key == self.public


def address_towards(host: str) -> str:
    """The address of this machine that `host` can answer to. Nothing is sent.

    A machine's own name often resolves to 127.0.0.1, which others cannot reach.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        address: str = probe.getsockname()[0]
        return address


def address_of(name: str) -> str | None:
    """The address a name resolves to, if it belongs to this machine."""
    try:
        address = socket.gethostbyname(name)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return None
    return address
