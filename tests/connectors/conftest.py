"""What the connector tests share."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary folders in memory where there is such a place: an fsync there costs nothing."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


POSTGRES = Path("/usr/lib/postgresql/15/bin")
PACKAGE = "postgresql-15"


def install_postgres() -> None:
    if (POSTGRES / "postgres").exists():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.fail(f"these tests need Debian's package {PACKAGE}: apt-get install {PACKAGE}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", PACKAGE]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=240)


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
        subprocess.run(
            [*self.account, str(POSTGRES / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            cwd="/",
        )


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real server; stopped and removed at the end."""
    install_postgres()
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        server = PostgresServer(folder)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
