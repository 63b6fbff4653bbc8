"""A real PostgreSQL server for tests, from Debian's package, that leaves nothing behind."""

import os
import socket
import subprocess
from pathlib import Path

from tests.installing import install


def programs() -> Path | None:
    """Where the newest installed server's programs are."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parent for path in found), key=lambda p: int(p.parent.name), default=None)


def install_postgres() -> None:
    """Skips where this machine gives us no way to install it; any other trouble is a failure."""
    if programs() is None:
        install("postgres")


class PostgresServer:
    """A server of our own on a free port of the loopback interface, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.sockets = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.dsn = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        # PostgreSQL refuses to run as root.
        self.account = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []

    def make(self) -> None:
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "--no-sync")

    def start(self) -> None:
        settings = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.sockets} -c fsync=off "
            "-c shared_buffers=16MB -c max_connections=60"
        )
        log = str(self.sockets / "log")
        self._run("pg_ctl", "-D", str(self.data), "-l", log, "-o", settings, "-w", "start")

    def stop(self, how: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self.data), "-m", how, "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        folder = programs()
        assert folder is not None
        subprocess.run(
            [*self.account, str(folder / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            cwd="/",
        )
