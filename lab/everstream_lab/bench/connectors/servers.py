"""Servers of their own for the rows that need one, where their programs are installed.

Each listens on a free port of the loopback interface, keeps its data in a folder that goes with
it, and is as durable as its makers ship it: the same for both sides of a row.
"""

import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path


class Server(ABC):
    """One process, started and stopped by us."""

    address: str
    """What a connector is given to find it."""

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """One whose data is in this folder; it is not started."""

    @staticmethod
    @abstractmethod
    def missing() -> str | None:
        """What is not installed here, and how to get it; None if it can be started."""

    @abstractmethod
    def start(self) -> None:
        """Start it, or start it again with all it had; it takes connections when this returns."""

    @abstractmethod
    def stop(self) -> None:
        """End it without asking."""


@contextmanager
def running(
    kinds: Collection[str], given: Mapping[str, str], known: Mapping[str, type[Server]]
) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """The addresses of these kinds of servers, and of the others why there is none.

    Those that are given are used as they are; the others are started here and stopped at the end.
    """
    addresses = dict(given)
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for kind in sorted(set(kinds) - set(given)):
            lacking = known[kind].missing() if kind in known else "none of ours can be started"
            if lacking is not None:
                missing[kind] = f"{lacking}, or say where one is: --at {kind}=ADDRESS"
                continue
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"everstream-{kind}-"))
            server = known[kind](Path(folder))
            stack.callback(server.stop)
            server.start()
            addresses[kind] = server.address
        yield addresses, missing


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
