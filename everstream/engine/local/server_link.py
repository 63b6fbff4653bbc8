"""The driver's side of the fork server: one for all local runs of a process.

It is started on demand, as a new Python. A program that has imported Everstream and done nothing
else can fork it from itself instead, which saves the time of the imports (`fork_from_here`).
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection

from everstream.engine.local.fork_server import COMPILER, ForkServer, preload
from everstream.engine.local.messages import (
    Ended,
    FromServer,
    Preload,
    RunBegins,
    RunEnds,
    ToServer,
)
from everstream.errors import EnvironmentFault

MODULE = "everstream.engine.local.fork_server"
USED_BY_WORKERS = tuple(
    f"everstream.{package}."
    for package in (
        "annotations",
        "connectors",
        "core",
        "pipeline",
        "processors",
        "runtime",
        "state",
        "transactions",
    )
)


class ServerLink:
    """A connection to a fork server."""

    def __init__(self, channel: socket.socket, wait: Callable[[], object]) -> None:
        """wait: returns when the server has ended, so that it does not remain as a zombie."""
        self.owner = os.getpid()
        self._channel = channel
        self._wait = wait
        self._connection: Connection[ToServer, FromServer] = Connection(os.dup(channel.fileno()))
        self._sending = threading.Lock()
        self._listeners: dict[str, Callable[[Ended | None], None]] = {}
        self._preloaded: set[str] = set()
        self.is_alive = True
        threading.Thread(target=self._listen, name="everstream-forks", daemon=True).start()

    def preload(self) -> None:
        """Have the server import what this process has imported and workers may use."""
        modules = {name for name in list(sys.modules) if name.startswith(USED_BY_WORKERS)}
        if COMPILER in sys.modules:
            modules.add(COMPILER)
        if new := modules - self._preloaded:
            self._preloaded |= new
            self.send(Preload(tuple(sorted(new))))

    def begin(self, run: RunBegins, listener: Callable[[Ended | None], None]) -> None:
        """The listener gets the end of each worker of this run; None: the server is gone."""
        self._listeners[run.run] = listener
        self.preload()
        with self._sending, suppress(OSError):  # the listener will hear of it
            self._connection.send(run)
            socket.send_fds(self._channel, [b"o"], [1, 2])

    def send(self, message: ToServer) -> None:
        with self._sending, suppress(OSError):
            self._connection.send(message)

    def end(self, run: str) -> None:
        if self._listeners.pop(run, None) is not None:
            self.send(RunEnds(run))

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                ended = self._connection.recv()
                if (listener := self._listeners.get(ended.run)) is not None:
                    listener(ended)
        self.is_alive = False
        self._wait()
        for listener in list(self._listeners.values()):
            listener(None)


_lock = threading.Lock()
_link: ServerLink | None = None


def server_link() -> ServerLink:
    """The fork server of this process."""
    global _link
    with _lock:
        if _link is None or not _link.is_alive or _link.owner != os.getpid():
            _link = _new_python()
        return _link


def fork_from_here(close: Iterable[int] = ()) -> None:
    """Make a copy of this process the fork server; the copy closes these descriptors.

    Only for a process that has imported modules and used none of them: it must have no threads.
    """
    global _link
    preload()
    ours, servers = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            for descriptor in close:
                os.close(descriptor)
            ForkServer(servers).serve()
        finally:
            os._exit(0)
    servers.close()
    _link = ServerLink(ours, lambda: os.waitpid(pid, 0))


def _new_python() -> ServerLink:
    if not sys.executable:
        raise EnvironmentFault(
            "this Python does not know its own program (sys.executable is empty), so it cannot "
            'start worker processes: use engine="tasks".'
        )
    ours, servers = socket.socketpair()
    path = os.pathsep.join(folder for folder in sys.path if folder)
    with servers:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(servers.fileno())],
            pass_fds=[servers.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
    return ServerLink(ours, process.wait)
