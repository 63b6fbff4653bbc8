"""What the driver orders for one epoch, and what each shard reports. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import Epoch, Generation, ShardId
from everstream.engine.microbatch.rows import Digest
from everstream.errors import EverstreamError
from everstream.pipeline.sink import Committable
from everstream.pipeline.tuning import Tuning
from everstream.state.objects import ObjectRef

ATTEMPTS = 1 << 16
"""Generations per job: every attempt at a shard that has to build it anew is one of its own."""

Version: TypeAlias = tuple[tuple[int, tuple[ObjectRef, ...]], ...]
"""What a shard's state is: the checkpoints it was restored from, or the one it has taken."""


@dataclass(frozen=True)
class Order:
    """One epoch, for every task of it."""

    run: str
    """Of one driver: what another one has left in a worker is nothing to it."""
    era: int
    """Rises when sinks have been put right: what was built before must not go on."""
    epoch: Epoch
    """To be taken."""
    stable: Epoch
    """The newest that is stable, with these records."""
    generation: Generation
    """Of the first attempt; others count on from there."""
    records: dict[ShardId, tuple[CheckpointRecord, ...]]
    budget: int
    """How many records a source shard reads."""
    ended_cycles: tuple[int, ...] = ()
    """Cycles of the plan on which nothing moves any more."""
    tuning: Tuning = field(default_factory=Tuning)
    """The settings that were changed."""
    closing: bool = False
    """The run is over: nothing is read, shards hear what is stable and leave."""

    def version(self, shard: ShardId) -> Version:
        return version_of(self.records[shard])

    def finished(self, shard: ShardId) -> bool:
        """It had ended before this epoch."""
        return any(record.final and record.shard == shard for record in self.records[shard])

    def generation_of(self, attempt: int) -> Generation:
        return Generation(self.generation + min(attempt, ATTEMPTS - 1))


def version_of(records: tuple[CheckpointRecord, ...]) -> Version:
    return tuple((record.number, record.objects) for record in records)


@dataclass(frozen=True)
class Failed:
    """User code, a source or a sink raised, or a rule of ours was broken."""

    error: EverstreamError


@dataclass(frozen=True)
class Unreadable:
    """The checkpoint cannot be restored."""

    reason: str


@dataclass(frozen=True)
class Unsaved:
    """The checkpoint could not be written."""

    reason: str


@dataclass(frozen=True)
class Incomplete:
    """Not all of its input came, so nothing was begun."""

    missing: str


Problem: TypeAlias = Failed | Unreadable | Unsaved | Incomplete


@dataclass(frozen=True)
class ShardReport:
    """What one attempt at one shard's part of an epoch came to."""

    shard: ShardId
    record: CheckpointRecord | None = None
    transactions: tuple[tuple[str, Committable], ...] = ()
    """By the stage they belong to."""
    sent: dict[int, Digest] = field(default_factory=dict)
    received: dict[int, Digest] = field(default_factory=dict)
    carried: ObjectRef | None = None
    """What it has sent back, for the next epoch."""
    carried_to: tuple[ShardId, ...] = ()
    """Whom that is for."""
    problem: Problem | None = None
    read: int = 0
    """Records that a source has read."""
    caught_up: bool = True
    """Not a source that has more to give of what there was when the run started."""
    retry: int = 0
    """How many attempts before this one were lost."""
    cached: bool = False
    """It went on where it was, without a restore."""
    processed: int = 0
    """Records it has had in this epoch; a source: has read."""
    began_at: float = 0.0
    """When this attempt began, on the clock on the wall."""
    restored_s: float = 0.0
    """How long it took to restore the shard."""
    took_s: float = 0.0
    forfeited: float = 0.0
    """Records of a load whose time has passed, of a source that does not make up for them."""
    wishes: tuple[Mapping[str, str], ...] = ()
    """What operators want to be tuned."""
