"""The plan as an operator sees it: which operators have how many shards, and its own place."""

from collections.abc import Mapping
from dataclasses import dataclass


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
