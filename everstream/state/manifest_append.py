"""Did it land? Puts an entry into the log of manifests and finds out whether it is there.

A put that failed may have got there all the same, or get there much later: on an object store even
after its writer has died. Looking does not help, because nobody sees what is still on its way. So
after an unknown outcome we occupy the very slot: of our entry and a void one whatever comes first
keeps the other out for ever. For this void entries are never removed, and an entry is put only
once; what is put again and again is the void one, which does no harm wherever it turns up.
"""

import time
from collections.abc import Callable, Generator
from typing import Any, NoReturn, TypeAlias

from everstream.errors import LeaseLost, NotStored, StoreError, said
from everstream.state.manifests import Lease, ManifestLog, encoded

PAUSE_S = 0.5

ManifestAppend: TypeAlias = Generator[Exception, None, int]
"""Gives what went wrong whenever it has to wait; returns the slot of an entry that is there.

Raises LeaseLost if somebody has taken over, and another StoreError if the entry is not there and
never will be. Nothing else is raised, and it goes on until one of the three is known.
"""

Wait: TypeAlias = Callable[[Exception], None]
"""Told what went wrong; returns when the store may be tried again."""


def append(log: ManifestLog, lease: Lease, kind: str, body: Any) -> ManifestAppend:
    """Add an entry under this lease. What is only late gets a moment before its slot is occupied."""
    try:
        slot = log.next_slot(lease)
        entry, void = encoded(kind, lease, body), encoded("void", lease, None)
    except Exception as error:  # nothing was put yet
        _give_up(error)
    failure: Exception = StoreError(f"slot {slot} of the log is void already")
    wanted = entry
    while True:
        try:
            held = log.occupy(slot, wanted)
            if held == void:
                log.require_newest(lease, slot)
            break
        except LeaseLost:
            raise
        except Exception as error:  # libraries of object stores raise many kinds
            if wanted is entry:
                failure = error
                if isinstance(error, NotStored):
                    raise
            wanted = void
            yield error
    if held not in (entry, void):
        raise log.lost(lease, slot, held)
    log.settled(lease, slot)
    if held == void:
        _give_up(failure)
    return slot


def performed(append: ManifestAppend, wait: Wait) -> int:
    """Go through with it, on this thread."""
    while True:
        try:
            trouble = next(append)
        except StopIteration as end:
            slot: int = end.value
            return slot
        wait(trouble)


def pause(trouble: Exception) -> None:
    time.sleep(PAUSE_S)


def _give_up(error: Exception) -> NoReturn:
    if isinstance(error, StoreError):
        raise error
    what = f"{type(error).__name__}: {said(error)}"
    raise StoreError(f"an entry could not be put into the store: {what}") from error
