"""Whether a simulated run shows that something is wrong, for the tests of mutants."""

from everstream.simulation.faults import Faults
from everstream.simulation.schemes import scheme_for
from everstream.simulation.shapes import shape_for
from everstream.simulation.world import World


def caught(protocol: str, seed: int, *, cycles: bool = False) -> bool:
    """In the output, by a rule of the core, or by an exception."""
    try:
        world = World(seed, shape_for(seed, cycles=cycles), Faults(), scheme_for(protocol, seed))
        return not world.run().right
    except Exception:
        return True
