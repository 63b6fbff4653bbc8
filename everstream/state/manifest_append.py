"""Appends an entry to the log of manifests and finds out whether it is there.

A put that failed may have arrived all the same, or arrive much later: on an object store even after
its writer has died. Reading does not help, because a put in flight is invisible. So after an
unknown outcome we occupy the same slot with a void entry: whichever of the two arrives first keeps
the other out for ever. For this reason void entries are never removed, and an entry is put only
once. Only the void one is put repeatedly, which is harmless wherever it appears.
"""

import time
from collections.abc import Callable, Generator
from typing import Any, NoReturn, TypeAlias

from everstream.errors import LeaseLost, NotStored, StoreError, said
from everstream.state.manifests import Lease, ManifestLog, encoded

PAUSE_S = 0.5

ManifestAppend: TypeAlias = Generator[Exception, None, int]
"""Yields the error whenever it has to wait; returns the slot of an entry that is there.

Raises LeaseLost if another driver has taken over, and another StoreError if the entry is not there
and never will be. Nothing else is raised, and it continues until one of the three is known.
"""

Wait: TypeAlias = Callable[[Exception], None]
"""Receives the error; returns when the store may be tried again."""


def append(log: ManifestLog, lease: Lease, kind: str, body: Any) -> ManifestAppend:
    """Add an entry under this lease. A late put gets a moment before its slot is occupied."""
    try:
        slot = log.next_slot(lease)
        entry, void = encoded(kind, lease, body), encoded("void", lease, None)
    except Exception as error:  # nothing was put yet
        _give_up(error)
    failure: Exception = StoreError(f"slot {slot} of the log is already void")
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
    """Perform all steps on this thread."""
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
