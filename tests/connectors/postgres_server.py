"""The PostgreSQL server of the tests: installed if it is not there."""

from everstream_lab.bench.connectors.postgres_server import PostgresServer, programs
from tests.installing import install

__all__ = ["PostgresServer", "install_postgres", "programs"]


def install_postgres() -> None:
    """Skips where this machine gives us no way to install it; any other trouble is a failure."""
    if programs() is None:
        install("postgres")
