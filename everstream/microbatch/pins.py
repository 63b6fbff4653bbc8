"""Which worker process runs which shard: a shard that comes back to its process need not be restored.

Spark keeps one pool of Python workers for each set of environment variables, and hands out any idle
one of a pool. So the shards of a level are dealt out to a few pins, each a value of a variable: as
long as an executor runs one task of a pin at a time, that pin's shards are always in the same
process. Nothing depends on it but time.
"""

from dataclasses import dataclass
from functools import cached_property

VARIABLE = "EVERSTREAM_PIN"


@dataclass(frozen=True)
class Pins:
    """The shards of one level, dealt out."""

    shards: int
    most: int
    """There should not be many more processes than tasks that can run at once."""

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The shards of each pin."""
        pins = max(1, min(self.shards, self.most))
        return tuple(tuple(range(pin, self.shards, pins)) for pin in range(pins))

    @cached_property
    def in_turn(self) -> tuple[int, ...]:
        """The shard of each task: Spark counts the tasks pin by pin."""
        return tuple(shard for group in self.groups for shard in group)
