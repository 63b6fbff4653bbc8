"""The Redis servers of the tests: installed if they are not there, killed at the end."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from everstream_lab.bench.connectors.redis_server import LocalRedis
from tests.installing import install
from tests.shared_memory import folder_in_memory


@contextmanager
def redis_server(*, password: str | None = None, save: bool = True) -> Iterator[LocalRedis]:
    """Skips where this machine gives us no way to install it; any other trouble is a failure."""
    if shutil.which("redis-server") is None:
        install("redis")
    with folder_in_memory() as folder:
        server = LocalRedis(folder, password=password, save=save)
        server.start()
        try:
            yield server
        finally:
            server.stop()
