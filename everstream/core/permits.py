"""The only place that makes permits.

A sink commits its records only with a permit, and a permit exists only for a checkpoint that can no
longer be rolled back. A shard requests one when the coordinator reports that a checkpoint is
stable, or commands it to restore one that is.
"""

from everstream.pipeline.sink import Permit


def permit(checkpoint: int, takes_back: bool = True) -> Permit:
    """The right to commit everything up to this checkpoint, which is stable."""
    made = object.__new__(Permit)
    object.__setattr__(made, "checkpoint", int(checkpoint))
    object.__setattr__(made, "takes_back", takes_back)
    return made
