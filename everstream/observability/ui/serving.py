"""Serves a run's page from a separate thread, as long as the program or the command needs it."""

import asyncio
import socket
import threading
from typing import Self

from everstream.errors import EnvironmentFault, UserError
from everstream.extras import extra
from everstream.observability.ui.auth import Guard, is_loopback, new_token
from everstream.observability.ui.server import make_app
from everstream.observability.ui.views import Shown

with extra("ui"):
    import uvicorn

HOST = "127.0.0.1"
PORT = 4120
"""Tried first; if it is taken, any free port."""
LEAVE_PATIENCE_S = 2.0


class Serving:
    """A server that runs during the block."""

    def __init__(self, shown: Shown, where: str | None = None, *, actions: bool = True) -> None:
        """where: HOST, :PORT or HOST:PORT; port 0 chooses a free one."""
        host, port = address_of(where)
        self.token = new_token()
        self._socket = _listening(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        acts = actions and shown.actor is not None
        guard = Guard(self.token, [host], acts=acts, cookie=f"everstream-{self.port}")
        self.app = make_app(shown, guard)
        config = uvicorn.Config(
            self.app, log_level="error", access_log=False, lifespan="off", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="everstream-ui", daemon=True)

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/"

    @property
    def link(self) -> str:
        """With the token after the #, where no server or log gets it."""
        return f"{self.url}#token={self.token}"

    @property
    def warning(self) -> str | None:
        """A warning if other machines can reach the page."""
        if is_loopback(self.host):
            return None
        return (
            f"the page on {self.host}:{self.port} can be reached from other machines, and nothing is "
            "encrypted: anyone who reads the traffic learns the token, can read state and dead "
            "letters, and can act. Serve it on 127.0.0.1, and reach it through ssh -L or a proxy with TLS"
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.app.state.ending.set()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=LEAVE_PATIENCE_S)
        self._socket.close()

    def _serve(self) -> None:
        # Not `Server.run`, which takes over the signals of the process.
        asyncio.run(self._server.serve(sockets=[self._socket]))


def address_of(where: str | None) -> tuple[str, int | None]:
    """Host and port; None is the default port, or a free one if that is taken."""
    if not where:
        return HOST, None
    host, colon, port = where.rpartition(":")
    if not colon or where.endswith("]"):
        host, port = (where, "") if not where.isdigit() else ("", where)
    if port and not (port.isdigit() and int(port) < 65536):
        raise UserError(f"--ui {where}: write HOST:PORT, as in 127.0.0.1:4120.")
    return host.strip("[]") or HOST, int(port) if port else None


def _listening(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tries = [port] if port is not None else [PORT, 0]
    for number in tries:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if number != tries[-1]:
                continue
            raise EnvironmentFault(
                f"the page cannot be served on {host}:{number}: {error.strerror or error}. Choose "
                "another address, or port 0 for a free one."
            ) from error
        return listening
    raise AssertionError("the last try returns or raises")
