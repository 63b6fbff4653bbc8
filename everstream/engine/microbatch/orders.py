"""The driver's order for one epoch, and the report of each shard. Values only."""

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
"""Generations per job: every attempt that has to rebuild a shard uses a new one."""

Version: TypeAlias = tuple[tuple[int, tuple[ObjectRef, ...]], ...]
"""The version of a shard's state: the checkpoints it was restored from, or the one it has taken."""


@dataclass(frozen=True)
class Order:
    """One epoch, for all its tasks."""

    run: str
    """Identifies the driver: shards that another driver left in a worker are ignored."""
    era: int
    """Increases when sinks have been repaired: shards built before that must not be used."""
    epoch: Epoch
    """The epoch to take."""
    stable: Epoch
    """The newest stable epoch, with these records."""
    generation: Generation
    """Generation of the first attempt; later attempts count up from it."""
    records: dict[ShardId, tuple[CheckpointRecord, ...]]
    budget: int
    """How many records a source shard reads."""
    ended_cycles: tuple[int, ...] = ()
    """Cycles of the plan on which nothing moves any more."""
    tuning: Tuning = field(default_factory=Tuning)
    """The changed settings."""
    reason: str = ""
    """What has failed since the newest stable epoch; empty if nothing has."""
    attempt: int = 1
    """One more than the run had failures."""
    closing: bool = False
    """The run is over: shards read nothing, learn the stable epoch and close."""

    def version(self, shard: ShardId) -> Version:
        return version_of(self.records[shard])

    def finished(self, shard: ShardId) -> bool:
        """Whether it had ended before this epoch."""
        return any(record.final and record.shard == shard for record in self.records[shard])

    def generation_of(self, attempt: int) -> Generation:
        return Generation(self.generation + min(attempt, ATTEMPTS - 1))


def version_of(records: tuple[CheckpointRecord, ...]) -> Version:
    return tuple((record.number, record.objects) for record in records)


@dataclass(frozen=True)
class Failed:
    """User code, a source or a sink raised, or an internal rule was broken."""

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
    """Not all input arrived, so the shard did not start."""

    missing: str


Problem: TypeAlias = Failed | Unreadable | Unsaved | Incomplete


@dataclass(frozen=True)
class ShardReport:
    """The outcome of one attempt at one shard's part of an epoch."""

    shard: ShardId
    record: CheckpointRecord | None = None
    transactions: tuple[tuple[str, Committable], ...] = ()
    """By the stage they belong to."""
    sent: dict[int, Digest] = field(default_factory=dict)
    received: dict[int, Digest] = field(default_factory=dict)
    carried: ObjectRef | None = None
    """The frames it sent back, for the next epoch."""
    carried_to: tuple[ShardId, ...] = ()
    """The receivers of those frames."""
    problem: Problem | None = None
    read: int = 0
    """Records that a source has read."""
    caught_up: bool = True
    """False for a source that has not yet emitted all input present at the start of the run."""
    retry: int = 0
    """The number of earlier attempts that were lost."""
    cached: bool = False
    """It continued from memory, without a restore."""
    processed: int = 0
    """Records processed in this epoch; for a source: records read."""
    began_at: float = 0.0
    """When this attempt started, in wall-clock time."""
    restored_s: float = 0.0
    """How long it took to restore the shard."""
    took_s: float = 0.0
    forfeited: float = 0.0
    """Records that were due and not emitted, of a source that does not make up for them."""
    wishes: tuple[Mapping[str, str], ...] = ()
    """Settings that operators want changed."""
