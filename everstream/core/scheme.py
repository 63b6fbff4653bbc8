"""From what a user chose to what the engines need: which protocol, which coordinator, which log."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from everstream.core.control import RunControl
from everstream.core.coordinator import Coordinator
from everstream.core.line_coordinator import LineCoordinator
from everstream.core.message_log import LogKind
from everstream.core.plan import Plan
from everstream.core.protocols.aligned import Aligned
from everstream.core.protocols.at_least_once import AtLeastOnce
from everstream.core.protocols.base import NoCheckpoints, Place, ShardProtocol
from everstream.core.protocols.induced import BCS, HMNR
from everstream.core.protocols.unaligned import Unaligned
from everstream.core.protocols.uncoordinated import Uncoordinated
from everstream.errors import GraphError
from everstream.pipeline import checkpointing
from everstream.pipeline.checkpointing import Coordinated, Induced

Checkpointing: TypeAlias = Coordinated | checkpointing.Uncoordinated


@dataclass(frozen=True)
class Scheme:
    """A way to checkpoint. Picklable: it goes to every host."""

    name: str
    protocol: Callable[[Place], ShardProtocol]
    log: LogKind = "none"
    """Where senders keep what they sent; without one everybody goes back at a failure."""
    cycles: bool = True
    """Works on graphs with feedback."""
    exactly_once: bool = True

    @property
    def coordinator(self) -> Callable[..., RunControl]:
        """With logs those go back who must; without, everybody."""
        return Coordinator if self.log == "none" else partial(LineCoordinator, log=self.log)

    def check(self, plan: Plan) -> None:
        """Raise a GraphError if this pipeline cannot be checkpointed so."""
        ordered = next((node for node in plan.graph.nodes.values() if node.ordered), None)
        if ordered is not None and self.log == "memory":
            raise GraphError(
                ordered.name,
                "it waits for every record in its order, and with logs in memory some can be lost",
                'Say log="durable" (--log durable), or drop ordered=True.',
            )
        if not self.cycles:
            edge = next((edge for edge in plan.graph.edges if edge.feedback), None)
            if edge is not None:
                raise GraphError(
                    edge.receiver,
                    f"{self.name} checkpoints cannot go round the cycle from '{edge.sender}' back "
                    "to it: its inputs would wait for each other for ever",
                    'Use es.Coordinated(mode="unaligned"), es.Induced(...) or '
                    "es.Uncoordinated(...); on the command line --checkpoint unaligned, hmnr, bcs "
                    "or uncoordinated.",
                )


ALIGNED = Scheme("aligned", Aligned, cycles=False)
AT_LEAST_ONCE = Scheme("at-least-once", AtLeastOnce, cycles=False, exactly_once=False)
UNALIGNED = Scheme("unaligned", Unaligned)
NONE = Scheme("none", NoCheckpoints)
_MODES = {scheme.name: scheme for scheme in (ALIGNED, AT_LEAST_ONCE, UNALIGNED)}
_RULES: dict[str, type[Uncoordinated]] = {"hmnr": HMNR, "bcs": BCS}


def scheme_of(checkpoint: Checkpointing | None) -> Scheme:
    """What a user's choice comes to."""
    match checkpoint:
        case None:
            return NONE
        case Coordinated(mode=mode):
            return _MODES[mode]
        case Induced(rule=rule):
            protocol, name = _RULES[rule], str(rule)
        case checkpointing.Uncoordinated():
            protocol, name = Uncoordinated, "uncoordinated"
    return Scheme(
        name,
        partial(protocol, every_s=checkpoint.every_s, jitter=checkpoint.jitter),
        log=checkpoint.log,
        exactly_once=checkpoint.log == "durable",
    )
