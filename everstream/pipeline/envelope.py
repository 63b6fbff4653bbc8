"""What an operator can ask besides its records: where a record comes from, and the plan of the run."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Envelope:
    """Where a record comes from, and whether it comes again. Operators get it with `ctx.envelope`.

    Under one sender, positions count the records in the order in which this shard gets them. They
    go back with a rollback, and start at 0 when the number of shards changes. An operator that works
    on whole batches, or is fused behind another operator, gets the envelope of the first record of
    the batch that its process received.
    """

    sender: str
    """The shard that the record, or the batch it was made from, came from, as "orders:0". For operators
    fused to a source: the source."""
    position: int
    """How many records came from this sender before it."""
    epoch: int
    """The newest checkpoint of this shard that the record is not part of; 0 for the empty start."""
    attempt: int
    """1 until a failure makes this shard roll back; from then on one more than the run had failures."""
    reprocessed: bool | None
    """Whether this shard was given the record before a rollback. None: that is not known, because the
    process that had the shard then is gone, or an operator failed in the batch that had the record.
    After the first checkpoint since the process went, records count as new."""


@dataclass(frozen=True, slots=True)
class PlanView:
    """A read-only view of the plan of a run. Operators get it with `ctx.plan`."""

    operator: str
    shard: int
    """The number of this shard, from 0."""
    worker: int
    """The number of the worker that runs this shard, from 0."""
    workers: int
    """How many workers there are."""
    shards: Mapping[str, int]
    """Operator -> how many shards it has, sources and sinks included. Cannot be changed."""
