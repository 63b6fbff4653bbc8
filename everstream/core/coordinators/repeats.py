"""Errors that come a second time, from the same checkpoint and at the same place."""

import re

from everstream.core.ids import Epoch
from everstream.errors import EverstreamError, OperatorError

KEPT = 100
_ADDRESS = re.compile(r"0x[0-9a-f]+")
"""Where an object lies in memory: it stands in its text and is another each time."""


class Repeats:
    """The errors since the last stable epoch that would recur."""

    def __init__(self) -> None:
        self._epoch = Epoch(0)
        self._seen: set[tuple[str, ...]] = set()

    def has_seen(self, error: EverstreamError, epoch: Epoch) -> bool:
        """Whether this very error was there before, and nothing has become stable since."""
        if epoch != self._epoch or len(self._seen) >= KEPT:
            self._seen.clear()
        self._epoch = epoch
        if not error.will_recur:
            return False
        place = _place(error)
        seen = place in self._seen
        self._seen.add(place)
        return seen


def _place(error: EverstreamError) -> tuple[str, ...]:
    """What two errors have in common that are the same one: whichever shard came to it first."""
    if isinstance(error, OperatorError):
        texts: tuple[str, ...] = (error.operator, error.record, error.traceback)
    else:
        texts = (type(error).__name__, error.message)
    return tuple(_ADDRESS.sub("0x", text) for text in texts)
