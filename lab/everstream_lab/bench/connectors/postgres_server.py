"""A PostgreSQL server from Debian's package, that leaves nothing behind."""

import os
import shutil
import subprocess
from pathlib import Path

from everstream_lab.bench.connectors.servers import Server, free_port


def programs() -> Path | None:
    """Where the newest installed server's programs are."""
    paths = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parent for path in paths), key=lambda p: int(p.parent.name), default=None)


class PostgresServer(Server):
    """A server on a free port of the loopback interface, in its own folder."""

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        self.data = folder / "data"
        self.sockets = folder
        self.port = free_port()
        self.dsn = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        self.address = self.dsn
        self._fsync = "on" if fsync else "off"
        # PostgreSQL refuses to run as root.
        self._account = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []

    @staticmethod
    def missing() -> str | None:
        return None if programs() else "install PostgreSQL (scripts/postgres.sh)"

    def start(self) -> None:
        if not self.data.exists():
            if self._account:
                shutil.chown(self.sockets, "postgres")
            own = ("-U", "postgres", "--auth=trust", "--no-sync")
            self._run("initdb", "-D", str(self.data), *own)
        settings = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.sockets} "
            f"-c fsync={self._fsync} -c shared_buffers=16MB -c max_connections=60"
        )
        log = str(self.sockets / "log")
        self._run("pg_ctl", "-D", str(self.data), "-l", log, "-o", settings, "-w", "start")

    def stop(self, how: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self.data), "-m", how, "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        folder = programs()
        assert folder is not None
        subprocess.run(
            [*self._account, str(folder / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            cwd="/",
        )
