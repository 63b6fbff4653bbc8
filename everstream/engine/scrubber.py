"""Reads stored objects slowly while a run is active, to find damage while an intact copy exists.

An object that is not read for weeks may rot, and then its copy; a recovery would find out too late.
So the scrubber reads one object after the other and compares it with its checksum. It rewrites a
damaged object from its copy and reports that. It reads at most `RATE_BYTES_PER_S`.
"""

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from everstream.errors import EnvironmentFault
from everstream.state.objects import ObjectRef
from everstream.state.store import CheckpointStore

RATE_BYTES_PER_S = 1_000_000
SHORTEST_PAUSE_S = 10.0
LARGEST_BYTES = 256_000_000
"""Larger objects are left to `everstream checkpoints --verify`: the driver holds one in memory."""


@dataclass
class Scrubber:
    """A thread that reads one object at a time. `found` returns its messages."""

    store: CheckpointStore
    kept: Callable[[], Sequence[ObjectRef]]
    shortest_pause_s: float = SHORTEST_PAUSE_S

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._said: SimpleQueue[str] = SimpleQueue()
        self._read: set[ObjectRef] = set()
        """The objects read in this round."""

    def start(self) -> None:
        threading.Thread(target=self._loop, name="everstream-scrub", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def found(self) -> list[str]:
        """The messages since the last call."""
        return [self._said.get() for _ in range(self._said.qsize())]

    def _loop(self) -> None:
        pause_s = self.shortest_pause_s
        try:
            while not self._stop.wait(pause_s):
                pause_s = max(self.shortest_pause_s, 2 * self.read_one() / RATE_BYTES_PER_S)
        except BaseException:  # the run can continue without scrubbing, but must report it
            self._said.put(f"kept objects are no longer scrubbed: {traceback.format_exc()}")

    def read_one(self) -> int:
        """Read the next object and its copy, and repair one from the other; returns its size."""
        kept = [ref for ref in dict.fromkeys(self.kept()) if ref.size_bytes <= LARGEST_BYTES]
        unread = [ref for ref in kept if ref not in self._read]
        if not unread:
            self._read, unread = set(), kept
        if not unread:
            return 0
        ref = unread[0]
        self._read = {*self._read & set(kept), ref}
        try:
            problem = self.store.weakness_of(ref)
            if problem is not None and ref in self.kept():  # otherwise it is being deleted
                self.store.heal(ref)
                self._said.put(f"object '{ref.name}' was healed: {problem}; check the disk")
        except EnvironmentFault:
            pass  # an unreachable store is reported elsewhere
        return ref.size_bytes
