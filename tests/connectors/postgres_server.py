"""A real PostgreSQL server for tests, from Debian's package, that leaves nothing behind."""

import fcntl
import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

INSTALL = Path(__file__).parents[2] / "scripts" / "postgres.sh"
NO_WAY = 3
"""The script's exit code when it is not allowed to install anything."""


def programs() -> Path | None:
    """Where the newest installed server's programs are."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parent for path in found), key=lambda p: int(p.parent.name), default=None)


def install_postgres() -> None:
    """Skips where this machine gives us no way to install it; any other trouble is a failure."""
    if programs() is not None:
        return
    with (Path(tempfile.gettempdir()) / "everstream-postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
        done = subprocess.run([str(INSTALL)], capture_output=True, text=True, timeout=280)
    if done.returncode == NO_WAY:
        pytest.skip(done.stderr.strip())
    if done.returncode:
        pytest.fail(f"PostgreSQL could not be installed:\n{done.stderr}{done.stdout}")


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
