"""Small named types for the things that would otherwise all be ints and strings."""

from typing import NamedTuple, NewType

Epoch = NewType("Epoch", int)
"""The number of a coordinated set of checkpoints; 0 is the empty start."""

NO_EPOCH = Epoch(0)

CheckpointNumber = NewType("CheckpointNumber", int)
"""The number of one shard's checkpoint: its epoch's where there are epochs, else its own count."""

NO_CHECKPOINT = CheckpointNumber(0)

Generation = NewType("Generation", int)
"""Rises with every restart and rollback; frames of a lower one come from a zombie."""

WorkerId = NewType("WorkerId", int)
"""A place in the plan: which shards run together in one process."""

TaskNumber = NewType("TaskNumber", int)
"""A process that can be a worker: the number of its task in the job of the workers."""

_GENERATIONS_PER_LEASE = 1 << 42
"""Enough for a new number with every attempt of every task, for as long as a driver can live."""


class ShardId(NamedTuple):
    """One parallel instance of an operator (or of a chain of fused ones, named by its first)."""

    operator: str
    number: int

    def __str__(self) -> str:
        return f"{self.operator}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> "ShardId":
        operator, _, number = text.rpartition(":")
        return cls(operator, int(number))


class ChannelId(NamedTuple):
    """The FIFO link from one shard to another along one edge of the graph."""

    edge: int
    sender: ShardId
    receiver: ShardId

    def __str__(self) -> str:
        return f"{self.edge}/{self.sender}->{self.receiver}"


def first_generation(lease: int) -> Generation:
    """Where a driver starts counting: above everything an earlier driver can have reached."""
    return Generation(lease * _GENERATIONS_PER_LEASE)
