"""From the user's choice to what the engines need: which protocol, which coordinator, which log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import LogKind
from everstream.core.coordinators.coordinated_strategy import CoordinatedStrategy
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.coordinators.independent_strategy import IndependentStrategy
from everstream.core.ids import Generation
from everstream.core.orders import Policy
from everstream.core.plan import Plan
from everstream.core.protocols.base import ShardPosition, ShardProtocol
from everstream.core.registry import PROTOCOLS, either, name_of
from everstream.errors import GraphError
from everstream.pipeline.checkpointing import Checkpointing, Coordinated, Uncoordinated
from everstream.pipeline.operator import decides


@dataclass(frozen=True)
class Scheme:
    """A way to checkpoint. Picklable: it goes to every worker."""

    name: str
    protocol: Callable[[ShardPosition], ShardProtocol]
    log: LogKind = "none"
    """Where senders keep the frames they sent; without a log all shards roll back."""
    cycles: bool = True
    """Works on graphs with feedback."""
    exactly_once: bool = True

    def coordinator(
        self,
        plan: Plan,
        policy: Policy,
        generation: Generation,
        manifests: Sequence[EpochManifest] = (),
        before: Coordinator | None = None,
        unwritten: bool = False,
    ) -> Coordinator:
        """With logs only the affected shards roll back; without, all.

        before: the coordinator that has quiesced the same run with other shards.
        unwritten: the newest of the manifests is to be written to the store once it is loaded.
        """
        strategy = (
            CoordinatedStrategy
            if self.log == "none"
            else partial(IndependentStrategy, log=self.log)
        )
        return Coordinator(plan, policy, generation, manifests, strategy, before, unwritten)

    def check(self, plan: Plan) -> None:
        """Raise a GraphError if this pipeline cannot be checkpointed in this way."""
        ordered = next((node for node in plan.graph.nodes.values() if node.ordered), None)
        if ordered is not None and self.log == "memory":
            raise GraphError(
                ordered.name,
                "it waits for every record in its order, and with logs in memory some can be lost",
                'Use log="durable" (--log durable), or drop ordered=True.',
            )
        deciding = next((n for n in plan.graph.nodes.values() if decides(n.what)), None)
        if deciding is not None and self.log == "none" and self.name != "none":
            others = [p for p in PROTOCOLS.values() if p.logs]
            raise GraphError(
                deciding.name,
                f"it defines should_checkpoint, and with {self.name} checkpoints the coordinator "
                "decides for all shards",
                f"Use {', '.join(protocol.in_python for protocol in others)}, or drop it.",
            )
        if not self.cycles:
            edge = next((edge for edge in plan.graph.edges if edge.feedback), None)
            if edge is not None:
                others = [p for p in PROTOCOLS.values() if p.cycles and p.choice is not None]
                raise GraphError(
                    edge.receiver,
                    f"{self.name} checkpoints cannot go round the cycle from '{edge.sender}' back "
                    "to it: its inputs would wait for each other for ever",
                    f"Use {', '.join(protocol.in_python for protocol in others)}; on the command "
                    f"line --checkpoint {either(others)}.",
                )


def scheme_of(checkpoint: Checkpointing | None) -> Scheme:
    protocol = PROTOCOLS[name_of(checkpoint)]
    if isinstance(checkpoint, Uncoordinated):
        return Scheme(
            protocol.name,
            partial(
                protocol.shard,
                every_s=checkpoint.every_s,
                jitter=checkpoint.jitter,
                every_records=checkpoint.every_records,
            ),
            log=checkpoint.log,
            cycles=protocol.cycles,
            exactly_once=protocol.exactly_once and checkpoint.log == "durable",
        )
    return Scheme(
        protocol.name, protocol.shard, cycles=protocol.cycles, exactly_once=protocol.exactly_once
    )


ALIGNED = scheme_of(Coordinated())
AT_LEAST_ONCE = scheme_of(Coordinated(mode="at-least-once"))
UNALIGNED = scheme_of(Coordinated(mode="unaligned"))
NONE = scheme_of(None)
