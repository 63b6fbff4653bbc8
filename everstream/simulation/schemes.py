"""Which protocols a simulated run can have, and how often a seed lets them checkpoint."""

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from everstream.core.scheme import ALIGNED, AT_LEAST_ONCE, UNALIGNED, Scheme, scheme_of
from everstream.pipeline.checkpointing import Induced, Uncoordinated

INTERVALS_S: Final = (0.01, 0.03, 0.08)
JITTER: Final = 0.3
Log: TypeAlias = Literal["durable", "memory"]

PROTOCOLS: Final[dict[str, Callable[[float, Log], Scheme]]] = {
    "aligned": lambda every_s, log: ALIGNED,
    "unaligned": lambda every_s, log: UNALIGNED,
    "at-least-once": lambda every_s, log: AT_LEAST_ONCE,
    "uncoordinated": lambda every_s, log: scheme_of(Uncoordinated(every_s, JITTER, log)),
    "hmnr": lambda every_s, log: scheme_of(Induced(every_s, JITTER, log, "hmnr")),
    "bcs": lambda every_s, log: scheme_of(Induced(every_s, JITTER, log, "bcs")),
}


def scheme_for(protocol: str, seed: int, *, log: Log = "durable") -> Scheme:
    """The protocol of this name; its shards' timers follow from the seed."""
    return PROTOCOLS[protocol](INTERVALS_S[seed % len(INTERVALS_S)], log)
