"""A Redis server that leaves nothing behind: appends to its file, and can be killed and started."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from everstream.connectors.redis.client import driver
from everstream.errors import EnvironmentFault
from everstream_lab.bench.connectors.servers import Server, free_port

PATIENCE_S = 60.0


class LocalRedis(Server):
    """A server on a free port of the loopback interface, in its own folder."""

    def __init__(self, folder: Path, *, password: str | None = None, save: bool = True) -> None:
        self.folder = folder
        self.port = free_port()
        self._password = password
        self._save = save
        self._process: subprocess.Popen[bytes] | None = None
        credentials = f":{password}@" if password else ""
        self.address = f"redis://{credentials}127.0.0.1:{self.port}/0"

    @staticmethod
    def missing() -> str | None:
        return None if shutil.which("redis-server") else "install Redis (scripts/redis.sh)"

    def start(self) -> None:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes" if self._save else "no",
            "save": "",
            "requirepass": self._password or "",
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["redis-server", *(word for k, v in settings.items() for word in (f"--{k}", v))],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait()

    def stop(self) -> None:
        """SIGKILL; what was answered is in its file."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self) -> Any:
        return driver().Redis.from_url(self.address, decode_responses=True)

    def _wait(self) -> None:
        assert self._process is not None
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except driver().ConnectionError as error:
                if self._process.poll() is not None or time.monotonic() > until_s:
                    log = (self.folder / "log").read_text()[-2000:]
                    raise EnvironmentFault(f"Redis did not start: {error}\n{log}") from error
                time.sleep(0.02)
