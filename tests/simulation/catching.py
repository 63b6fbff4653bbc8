"""Whether a simulated run shows that something is wrong, for the tests of mutants."""

from everstream.simulation.faults import Faults
from everstream.simulation.shapes import shape_for
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World

FAULTS = Faults(rotten_objects=1, slow_uploads=0, odd_errors=0)
"""Without those of the store that only cost time: the tests name seeds that meet rare moments."""


def caught(protocol: str, seed: int, *, cycles: bool = False) -> bool:
    """In the output, by a rule of the core, or by an exception."""
    try:
        world = World(seed, shape_for(seed, cycles=cycles), FAULTS, scheme_for(protocol, seed))
        return not world.run().right
    except Exception:
        return True
