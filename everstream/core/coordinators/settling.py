"""Brings a run to a standstill in which nothing is on its way, so that its shards can be changed.

Sources are told to read no more, and operators' timers rest; all that is on its way arrives. All
shards are asked around as those of a cycle are (`coordinators/loops.py`) until none has work and
nothing moves. The checkpoint that is taken then holds no frames, under whatever protocol.
"""

from collections.abc import Sequence

from everstream.core.coordinators.loops import LoopWatch
from everstream.core.ids import Generation, ShardId
from everstream.core.messages import EVERYBODY, Census, Command, Pause, Probe


class Settling:
    """Whether somebody wants a standstill, and how far it has come."""

    def __init__(self, shards: Sequence[ShardId]) -> None:
        self._watch = LoopWatch(tuple(shards))
        self._paused_in: Generation | None = None
        """Shards that go back forget that they were told to pause."""
        self.reason: str | None = None
        self.by_s = 0.0
        """When it is given up."""

    @property
    def wanted(self) -> bool:
        return self.reason is not None

    def begin(self, reason: str, by_s: float) -> None:
        self.reason, self.by_s, self._paused_in = reason, by_s, None

    def interrupt(self) -> None:
        """Somebody goes back: things move again, and answers that are on their way do not count."""
        self._paused_in = None
        self._watch.reset()

    def end(self) -> None:
        """Nobody wants it any more, or it is there."""
        self.reason = None

    def commands(self, generation: Generation) -> list[Command]:
        """What to tell all shards now, while everybody works."""
        if not self.wanted:
            return []
        if generation != self._paused_in:
            self._paused_in = generation
            self._watch.reset()
            return [Pause()]
        if self._watch.complete and not self._watch.over:
            return [Probe(EVERYBODY, self._watch.next_round())]
        return []

    def on_census(self, answer: Census) -> bool:
        """Whether this answer shows that everything stands still."""
        if not self.wanted or answer.cycle != EVERYBODY or self._watch.over:
            return False
        self._watch.on_census(answer)
        return self._watch.over
