"""The driver's side of the fork server: one for all local runs of a process, started on demand."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from everstream.engine.local.messages import Ended, FromServer, RunBegins, RunEnds, ToServer
from everstream.errors import EnvironmentFault

MODULE = "everstream.engine.local.fork_server"


class ServerLink:
    """A connection to a fork server."""

    def __init__(self) -> None:
        if not sys.executable:
            raise EnvironmentFault(
                "this Python does not know its own program (sys.executable is empty), so it cannot "
                'start worker processes: use engine="tasks".'
            )
        self.owner = os.getpid()
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                },
            )
        self._connection: Connection[ToServer, FromServer] = Connection(self._channel.fileno())
        self._sending = threading.Lock()
        self._listeners: dict[str, Callable[[Ended | None], None]] = {}
        self.is_alive = True
        threading.Thread(target=self._listen, name="everstream-forks", daemon=True).start()

    def begin(self, run: RunBegins, listener: Callable[[Ended | None], None]) -> None:
        """The listener gets the end of each worker of this run; None: the server is gone."""
        self._listeners[run.run] = listener
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
        self._process.wait()
        for listener in list(self._listeners.values()):
            listener(None)


_lock = threading.Lock()
_link: ServerLink | None = None


def server_link() -> ServerLink:
    """The fork server of this process."""
    global _link
    with _lock:
        if _link is None or not _link.is_alive or _link.owner != os.getpid():
            _link = ServerLink()
        return _link
