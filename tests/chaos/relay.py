"""A relay for TCP connections: a network between two processes that a test can cut.

Every connection gets two threads, one for each direction. While the relay swallows, it reads and
forgets: neither end sees its connection break, as when a router dies. Healing resets whatever
connection has lost something, as a real one would be at last.
"""

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

from everstream.engine.continuous.transport.endpoints import Address

RESET = struct.pack("ii", 1, 0)


class Relay:
    def __init__(self) -> None:
        self.swallowing = False
        self.heal_after_bytes: int | None = None
        self.swallowed_bytes = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._doors: dict[str, socket.socket] = {}

    def address(self, address: Address) -> Address:
        """The same place, but reached through this relay."""
        assert address.tcp is not None
        with self._lock:
            if address.tcp not in self._doors:
                door = socket.create_server(("127.0.0.1", 0))
                self._doors[address.tcp] = door
                host, port = address.tcp.removeprefix("tcp://").rsplit(":", 1)
                self._run(self._accept, door, (host, int(port)))
            port = self._doors[address.tcp].getsockname()[1]
        return replace(address, tcp=f"tcp://127.0.0.1:{port}")

    def swallow(self, heal_after_bytes: int | None = None) -> None:
        """From now on nothing passes; until healed, or until so much was lost."""
        self.heal_after_bytes = heal_after_bytes
        self.swallowed_bytes = 0
        self.swallowing = True

    def heal(self) -> None:
        """Everything passes again; connections of before are reset."""
        with self._lock:
            self.swallowing = False
            broken, self._open = self._open, []
        for end in broken:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for door in self._doors.values():
            door.close()
        self.heal()

    def _accept(self, door: socket.socket, target: tuple[str, int]) -> None:
        while True:
            try:
                inner, _ = door.accept()
            except OSError:
                return
            try:
                outer = socket.create_connection(target)
            except OSError:
                inner.close()
                continue
            with self._lock:
                self._open += [inner, outer]
            self._run(self._pump, inner, outer)
            self._run(self._pump, outer, inner)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if not self.swallowing:
                    target.sendall(data)
                    continue
                self.swallowed_bytes += len(data)
                if self.heal_after_bytes is not None and (
                    self.swallowed_bytes >= self.heal_after_bytes
                ):
                    self.heal()
        except OSError:
            pass
        finally:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            source.close()

    def _run(self, target: Any, *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()
