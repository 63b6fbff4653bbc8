"""Errors of every kind that external code raises: some cannot be pickled, printed, or even named.

Operators, sinks and the libraries of stores raise all kinds of errors. Whatever it is, a run must
continue or end with a reason; so the simulator raises one of each.
"""

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

from everstream.errors import ConnectorError


class OddError(Exception):
    """As in the libraries of object stores: neither an OSError nor one of ours."""


class ResponseError(Exception):
    """Takes two arguments and keeps one, so it pickles, but cannot be unpickled."""

    def __init__(self, response: dict[str, str], operation: str) -> None:
        super().__init__(f"an error occurred ({response['Code']}) when calling {operation}")


class HoldsLock(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Mute(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("even this fails")

    __repr__ = __str__


class MuteOSError(OSError):
    """An expected kind of error that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("even this fails")

    __repr__ = __str__


class TheirConnectorError(ConnectorError):
    """One of ours, with an added attribute that cannot be pickled."""

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
"""The errors that an operation of a store may raise."""

OPERATORS: Final[dict[str, Make]] = {
    **STORES,
    "a KeyboardInterrupt": KeyboardInterrupt,
    "a SystemExit": SystemExit,
    "a GeneratorExit": GeneratorExit,
    "one of ours with a lock": TheirConnectorError,
}
"""The errors that user code and the libraries that it calls may raise."""


def raise_one(kinds: dict[str, Make], what: str, chance: random.Random) -> NoReturn:
    """Raise one of these; `what` went wrong."""
    raise kinds[chance.choice(list(kinds))](what)
