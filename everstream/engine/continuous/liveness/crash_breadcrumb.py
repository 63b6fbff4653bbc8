"""Records a worker's current operator where it can still be read after the worker's death.

A process that gets SIGKILL sends no last message. So its shards write the number of the current
operator to a memory-mapped file: one memory write per batch and no system call. The file outlives
the process, and the driver reads it if it is on the same machine.
"""

import mmap
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from everstream.core.ids import ShardId
from everstream.core.plan import Plan

FILE = "place"
NOBODY = 0xFFFF
KIND: Final = "H"


class CrashBreadcrumb:
    """The first number is the active shard; then one number per shard: its current operator."""

    def __init__(self, folder: str, plan: Plan, shards: Sequence[ShardId]) -> None:
        self._plan = plan
        self._shards = shards
        path = os.path.join(folder, FILE)
        numbers = array(KIND, [NOBODY] * (len(shards) + 1))
        Path(path).write_bytes(numbers.tobytes())
        with open(path, "r+b") as file:
            mapped = mmap.mmap(file.fileno(), len(numbers) * numbers.itemsize)
        self._numbers = memoryview(mapped).cast(KIND)

    def of(self, shard: ShardId) -> "memoryview[int]":
        """Where this shard's chain records its operator."""
        position = 1 + self._shards.index(shard)
        return self._numbers[position : position + 1]

    def enter(self, position: int) -> None:
        self._numbers[0] = position

    def now(self) -> tuple[ShardId, str] | None:
        """The shard and the operator that were active last."""
        return _found(self._numbers.tolist(), self._plan, self._shards)


def last_at_work(folder: Path, plan: Plan, shards: Sequence[ShardId]) -> str | None:
    """What a dead worker last worked on, in words; None if it is unknown."""
    numbers = array(KIND)
    try:
        numbers.frombytes((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    found = _found(numbers.tolist(), plan, shards) if len(numbers) == len(shards) + 1 else None
    return None if found is None else f"operator '{found[1]}' (shard {found[0].number})"


def _found(
    numbers: Sequence[int], plan: Plan, shards: Sequence[ShardId]
) -> tuple[ShardId, str] | None:
    if numbers[0] >= len(shards):
        return None
    shard = shards[numbers[0]]
    operators = plan.chains[shard.operator].operators
    number = numbers[1 + numbers[0]]
    return (shard, operators[number]) if number < len(operators) else None
