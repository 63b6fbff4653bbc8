"""The Redis servers of the tests: installed if they are not there, killed at the end."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstream_lab.bench.connectors.redis_server import LocalRedis
from tests.installing import install


@contextmanager
def redis_server(*, password: str | None = None, save: bool = True) -> Iterator[LocalRedis]:
    """Skips where this machine gives us no way to install it; any other trouble is a failure."""
    if shutil.which("redis-server") is None:
        install("redis")
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        server = LocalRedis(Path(folder), password=password, save=save)
        server.start()
        try:
            yield server
        finally:
            server.stop()
