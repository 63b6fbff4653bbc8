"""Records that cannot be handled: fail, skip them, or keep them as dead letters.

A source rejects what it cannot parse, an operator what its function raised on, a sink what it
cannot store exactly. `fail` ends the run with an error that shows the record; `skip` counts it;
`dead_letter` counts it and keeps it in the store, with the error, exactly once.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from everstream.errors import UserError
from everstream.state.saved import Saved

OnError: TypeAlias = Literal["fail", "skip", "dead_letter"]


def checked(on_error: Any, where: str) -> OnError:
    """The option as given, or a UserError that names the choices."""
    if on_error not in get_args(OnError):
        choices = ", ".join(repr(choice) for choice in get_args(OnError))
        raise UserError(f"{where}: on_error={on_error!r} is not one of {choices}.")
    chosen: OnError = on_error
    return chosen


@dataclass(frozen=True)
class Rejected(Saved, word="rejected"):
    """Input that was rejected, and why."""

    record: Any
    error: str
    place: str = ""
    """Where a source read it: file and line, or table and key."""
    records: int = 1
    """How many records this represents: a broken Parquet row group has many."""


def describe(error: BaseException) -> str:
    """An exception in one line: its type and its message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
