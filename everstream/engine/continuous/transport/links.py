"""Connections between workers, and how to detect that one was cut.

ZeroMQ reconnects automatically, and messages in flight when a connection breaks are lost silently.
So over a network every connection is watched: it reports when it comes up and goes down, and sends
heartbeats, because a peer whose packets are dropped never disconnects. A connection that went down
while both ends are alive may have lost frames or credit: all workers roll back to the last
checkpoint and reconnect. Between processes of one machine nothing can get lost.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from everstream.core.coordinators.stall_warning import StallWarning
from everstream.core.ids import Generation, WorkerId
from everstream.core.messages import LinkCut
from everstream.engine.continuous.transport.control_messages import Unreachable
from everstream.engine.continuous.transport.endpoints import Address, SocketFactory

GRACE_S = 2.0
"""How long a connection may stay down before its peer's death no longer explains it."""


class Watch:
    """Follows the state of one connection; on a unix socket there is nothing to follow."""

    def __init__(
        self, sockets: SocketFactory, kind: int, address: Address, identity: bytes = b""
    ) -> None:
        self.address = address
        self.over_network = sockets.over_network(address)
        self.socket = sockets.connect(kind, address, identity, watched=self.over_network)
        self.is_up = not self.over_network
        self.went_down_s: float | None = None
        self.came_back = False
        self._events = self.socket.get_monitor_socket() if self.over_network else None

    def look(self, now_s: float) -> None:
        """Process what has happened since the last call."""
        while self._events is not None:
            try:
                message = self._events.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            event = parse_monitor_message(message)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.came_back = self.went_down_s is not None
                self.is_up = True
            elif event == zmq.EVENT_DISCONNECTED and self.is_up:
                self.went_down_s = self.went_down_s or now_s
                self.is_up = False

    def is_cut(self, now_s: float, grace_s: float = 0.0) -> bool:
        """It went down, and its peer is alive or there was enough time to detect its death."""
        if self.went_down_s is None:
            return False
        return self.came_back or now_s - self.went_down_s >= grace_s

    def close(self, linger_ms: int = 0) -> None:
        if self._events is not None and not self.socket.closed:
            with suppress(zmq.ZMQError):  # the context may be gone already
                self.socket.disable_monitor()
            self._events.close(linger=0)
        self.socket.close(linger=linger_ms)


class Peers:
    def __init__(self, sockets: SocketFactory, id: WorkerId, slow_after_s: float) -> None:
        self._sockets = sockets
        self._id = id
        self._slow_after_s = slow_after_s
        self._generation = Generation(-1)
        self._watches: dict[WorkerId, Watch] = {}
        self._stall_warning: dict[WorkerId, StallWarning] = {}
        self._told: set[tuple[WorkerId, WorkerId]] = set()

    def __getitem__(self, worker: WorkerId) -> "zmq.Socket[bytes]":
        return self._watches[worker].socket

    def post(self, worker: WorkerId, parts: list[Any], copy: bool) -> None:
        socket = self[worker]
        if len(parts) == 1:
            socket.send(parts[0], copy=copy)
        else:
            socket.send_multipart(parts, copy=copy)

    def meet(
        self, addresses: Mapping[WorkerId, Address], generation: Generation, now_s: float
    ) -> None:
        """Connect to new workers and where a connection was cut; other connections stay.

        Messages that wait for workers that are gone are dropped.
        """
        self._generation = generation
        self._told.clear()
        for worker, address in addresses.items():
            if worker == self._id:
                continue
            watch = self._watches.get(worker)
            if watch is not None:
                watch.look(now_s)
                if watch.address == address and watch.went_down_s is None:
                    continue
                watch.close()
            self._watches[worker] = Watch(self._sockets, zmq.PUSH, address)
            self._stall_warning[worker] = StallWarning(self._slow_after_s)

    def news(self, now_s: float) -> Iterator[LinkCut | Unreachable]:
        """Reports for the driver: cuts, and peers that cannot be reached."""
        for worker, watch in self._watches.items():
            watch.look(now_s)
            if watch.is_cut(now_s, GRACE_S):
                yield from self._cut(self._id, worker, "it broke")
            waited_s = self._stall_warning[worker].due(None if watch.is_up else "it", now_s)
            if waited_s is not None:
                yield Unreachable(self._id, worker, waited_s)

    def over_network(self, worker: WorkerId) -> bool:
        """Whether frames to and from that worker cross a network, where they can get lost."""
        return worker != self._id and self._watches[worker].over_network

    def frames_lost(self, sender: WorkerId) -> Iterator[LinkCut]:
        """The report to the driver when frames from that worker are missing: once."""
        yield from self._cut(sender, self._id, "frames are missing")

    def _cut(self, sender: WorkerId, receiver: WorkerId, how: str) -> Iterator[LinkCut]:
        if (sender, receiver) not in self._told:
            self._told.add((sender, receiver))
            yield LinkCut(sender, receiver, self._generation, how)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        self._stall_warning.clear()
