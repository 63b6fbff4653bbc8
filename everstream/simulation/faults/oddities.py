"""Errors of every kind that code of others raises: some cannot be pickled, shown, or even named.

Operators, sinks and the libraries of stores raise what they like. Whatever it is, a run must go on
or end with a reason; so the simulator raises one of each.
"""

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

from everstream.errors import ConnectorError


class OddError(Exception):
    """As the libraries of object stores have them: neither an OSError nor one of ours."""


class ResponseError(Exception):
    """Wants two arguments and keeps one, so it pickles, but cannot be unpickled."""

    def __init__(self, response: dict[str, str], operation: str) -> None:
        super().__init__(f"an error occurred ({response['Code']}) when calling {operation}")


class HoldsLock(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("even this fails")

    __repr__ = __str__


class MuteOSError(OSError):
    """One of those that are expected, which cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("even this fails")

    __repr__ = __str__


class TheirConnectorError(ConnectorError):
    """One of ours, to which somebody has added what cannot travel."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


Make: TypeAlias = Callable[[str], BaseException]

STORES: Final[dict[str, Make]] = {
    "an odd error": OddError,
    "an OSError": lambda what: OSError(5, "Input/output error", what),
    "an empty OSError": lambda what: OSError(),
    "a mute OSError": MuteOSError,
    "a ValueError": ValueError,
    "a RuntimeError": RuntimeError,
    "a KeyError": KeyError,
    "a MemoryError": MemoryError,
    "a StopIteration": StopIteration,
    "an ExceptionGroup": lambda what: ExceptionGroup(what, [ValueError(what), OddError(what)]),
    "a response": lambda what: ResponseError({"Code": "SlowDown"}, what),
    "one that cannot be pickled": HoldsLock,
    "one that cannot be shown": Mute,
    "one that cannot be encoded": lambda what: ValueError(f"{what} \udc80"),
    "a cancellation": asyncio.CancelledError,
}
"""What an operation of a store may raise."""

OPERATORS: Final[dict[str, Make]] = {
    **STORES,
    "a KeyboardInterrupt": KeyboardInterrupt,
    "a SystemExit": SystemExit,
    "a GeneratorExit": GeneratorExit,
    "one of ours with a lock": TheirConnectorError,
}
"""What the code of users and the libraries that it calls may raise."""


def raise_one(kinds: dict[str, Make], what: str, chance: random.Random) -> NoReturn:
    """Raise one of these; `what` went wrong."""
    raise kinds[chance.choice(list(kinds))](what)
