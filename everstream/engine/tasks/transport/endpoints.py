"""Who listens where: unix sockets on one machine, TCP with CURVE keys between machines.

Each run has one key pair. Servers use it, clients must show it, and nobody else knows it, so
nothing that comes in over TCP is looked at unless its sender belongs to this run; hosts are given it
at the `key_exchange`. What somebody sends before he has shown his key can be no larger than one part of a
message, and to the key_exchange, where everybody may go, no more than a request takes. Unix sockets live in folders only we can enter.
"""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from everstream.engine.scratch import make_folder
from everstream.engine.tasks.transport.connection_guard import Turnstile

HEARTBEAT_S = 1.0
PART_BYTES = 4 << 20
"""Over a network nothing larger is sent in one part, so nobody has to take in anything larger."""
SLACK_BYTES = 4096
"""What encryption and headers add to a part."""
CONNECTION_BYTES = 4096
"""What somebody without the run's keys may send over one connection, in all: several requests."""
STRANGER_S = 30.0
"""How long a connection of such a one lives at most, if not as long as silence is borne."""
GATE = "key_exchange"
"""The domain, as the authenticator calls it, of sockets that everybody may talk to."""
WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass(frozen=True)
class RunKeys:
    """The key pair of one run."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> "RunKeys":
        return cls(*zmq.curve_keypair())


@dataclass(frozen=True)
class Address:
    """Where a socket can be reached."""

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
    """Equal for two processes exactly if they can meet at a unix socket in /tmp."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    identity = boot.read_text().strip() if boot.exists() else ""
    mounts = Path("/proc/self/ns/mnt")
    namespace = os.readlink(mounts) if mounts.exists() else ""
    return f"{socket.gethostname()}/{identity}/{namespace}"


class SocketFactory:
    """Makes the sockets of one process: binds, connects, and keeps the keys out of sight."""

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
        """A connection over TCP on which nothing was heard for so long is cut."""
        self.machine = os.urandom(8).hex() if always_tcp else this_machine()
        self.context = zmq.Context()
        self.folder = make_folder()
        self._turnstiles: list[Turnstile] = []
        self._authenticator: ThreadAuthenticator | None = None
        if interface is not None:
            self._authenticator = ThreadAuthenticator(self.context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(
                domain="*", credentials_provider=_OnlyThisRun(keys.public)
            )
            self._authenticator.configure_curve_callback(
                domain=GATE, credentials_provider=_Anyone()
            )

    def listen(
        self,
        kind: int,
        name: str,
        *,
        keys: RunKeys | None = None,
        anyone: bool = False,
        largest_bytes: int = PART_BYTES + SLACK_BYTES,
    ) -> "tuple[zmq.Socket[bytes], Address]":
        """A bound socket and the address others reach it at.

        keys: other keys than the run's. anyone: also for those who do not have the run's keys; each
        of their connections may send CONNECTION_BYTES in all. largest_bytes: who sends a larger part over the network, before or after he has shown his
        key, is hung up on.
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

        watched: its monitor socket tells when the connection is up and when it went down.
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
        """Whether a connection to this address leaves the machine, as far as we can tell."""
        return address.seen_from(self.machine).startswith("tcp")

    def close(self) -> None:
        """All sockets must have been closed before: otherwise ZeroMQ waits for ever."""
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
        made.set_hwm(0)  # credit limits what is on its way, not ZeroMQ
        return made


def connected_to(
    socket: "zmq.Socket[bytes]", target: str, *, server: bytes, own: RunKeys | None
) -> None:
    """Connect; with keys of our own, encrypted for who has the server's secret key."""
    if own is not None:
        socket.curve_serverkey = server
        socket.curve_publickey, socket.curve_secretkey = own.public, own.secret
    socket.connect(target)


def in_parts(data: Any) -> list[Any]:
    """These bytes in parts that every socket takes; large ones are not copied."""
    if len(data) <= PART_BYTES:
        return [data]
    whole = memoryview(data)
    return [whole[start : start + PART_BYTES] for start in range(0, len(whole), PART_BYTES)]


class _Anyone:
    """Lets in everybody: what they say is looked at with care."""

    def callback(self, domain: str, key: bytes) -> bool:
        return True


class _OnlyThisRun:
    """Lets in whoever shows the run's own key."""

    def __init__(self, public: bytes) -> None:
        self.public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self.public


def address_towards(host: str) -> str:
    """The address of this machine that `host` can answer to. Nothing is sent.

    A machine's own name often stands for 127.0.0.1, which others cannot reach.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        address: str = probe.getsockname()[0]
        return address


def address_of(name: str) -> str | None:
    """The address a name stands for, if it is one of this machine's own."""
    try:
        address = socket.gethostbyname(name)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return None
    return address
