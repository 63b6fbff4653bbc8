"""Where permits come from: the one place that makes them.

A sink shows its records only with a permit, and there is one only for a checkpoint that can no
longer be rolled back. The shard asks for it when it is told that a checkpoint is stable, or when
it is told to restore one that is.
"""

from everstream.pipeline.sink import Permit


def permit(checkpoint: int, takes_back: bool = True) -> Permit:
    """The right to show everything up to this checkpoint, which is stable."""
    made = object.__new__(Permit)
    object.__setattr__(made, "checkpoint", int(checkpoint))
    object.__setattr__(made, "takes_back", takes_back)
    return made
