"""The PostgreSQL server of the tests: installed if it is not there."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import CalledProcessError

from everstream_lab.bench.connectors.postgres_server import PostgresServer, programs
from tests.installing import install
from tests.shared_memory import folder_in_memory

__all__ = ["PostgresServer", "install_postgres", "postgres_server", "programs"]


def install_postgres() -> None:
    """Skips where this machine gives us no way to install it; any other trouble is a failure."""
    if programs() is None:
        install("postgres")


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server of its own, for a test that stops it or sets it up as it likes."""
    install_postgres()
    with folder_in_memory() as folder:
        server = PostgresServer(folder, fsync=False)
        server.start()
        try:
            yield server
        finally:
            with suppress(CalledProcessError):  # the test has stopped it
                server.stop()
