"""Uncoordinated checkpoints: each shard takes its own, on its own timer.

Shards do not wait for each other. Senders log their frames, so frames in transit between two
checkpoints can be replayed; which checkpoints fit together is computed after a failure.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from everstream.core.ids import ChannelId, CheckpointNumber
from everstream.core.messages import StartCheckpoint
from everstream.core.protocols.base import (
    Ask,
    ShardPosition,
    ShardProtocol,
    StopProducing,
    TakeCheckpoint,
)
from everstream.pipeline.keys import stable_hash


class UncoordinatedProtocol(ShardProtocol):
    """A checkpoint every `every_s` seconds, each time a little earlier or later, or `every_records`.

    Operators may ask for one earlier, or postpone one: until the interval has passed twice.
    """

    keeps_positions: ClassVar[bool] = True
    obeys_everywhere: ClassVar[bool] = True

    def __init__(
        self,
        place: ShardPosition,
        every_s: float | None,
        jitter: float,
        every_records: int | None = None,
    ) -> None:
        super().__init__(place)
        self.every_s = every_s
        self.every_records = every_records
        self.jitter = jitter
        self.number = 0
        """The newest checkpoint, local or forced."""
        self._due_s = math.inf
        self._interval_s = math.inf
        self._counted_from = 0
        """The records there were when the timer was set."""
        self._timer_set = False

    def on_tick(self, now_s: float, records: int = 0, wish: bool | None = None) -> Sequence[Ask]:
        if not self._timer_set:
            self._timer_set = True
            self._interval_s = self._wait_s()
            self._due_s = now_s + self._interval_s
            self._counted_from = records
        new = records - self._counted_from
        if wish and new:
            return [self.take()]
        most = math.inf if self.every_records is None else self.every_records
        if wish is False:
            due = now_s >= self._due_s + self._interval_s or new >= 2 * most
        else:
            due = now_s >= self._due_s or new >= most
        return [self.take()] if due else ()

    def set_interval(self, every_s: float) -> None:
        if every_s != self.every_s:
            self.every_s = every_s
            if self._timer_set:
                set_at_s = self._due_s - self._interval_s
                self._interval_s = self._wait_s()
                self._due_s = set_at_s + self._interval_s

    def on_command(self, command: StartCheckpoint) -> Sequence[Ask]:
        """Take a checkpoint now, because a caller waits for it, or to stop with it."""
        if command.stop:
            return [self.take(stopped=True), StopProducing()]
        return [self.take()] if command.wanted else ()

    def take(self, *, forced: bool = False, stopped: bool = False) -> TakeCheckpoint:
        """The next checkpoint; the timer counts from it."""
        self.number += 1
        self._timer_set = False
        self.on_checkpoint(forced)
        return TakeCheckpoint(CheckpointNumber(self.number), forced, "outputs", stopped)

    def on_checkpoint(self, forced: bool) -> None:
        """A checkpoint is about to be taken: everything later is after it."""

    def variables(self) -> dict[str, Any]:
        return {"number": self.number}

    def restore(self, variables: dict[str, Any], ended: Sequence[ChannelId]) -> None:
        super().restore(variables, ended)
        self.number = variables.get("number", 0)
        self._timer_set = False

    def _wait_s(self) -> float:
        """Derived from shard name and checkpoint number, so that a run can be repeated."""
        if self.every_s is None:
            return math.inf
        chance = stable_hash((str(self.place.id), self.number)) % 1_000_001 / 1_000_000
        return self.every_s * (1 + self.jitter * (2 * chance - 1))
