"""From a graph to shards, channels and workers.

Operators joined by a plain edge between equal shard counts are fused into a chain: one shard
runs them all, no channel between. A chain is named by its first operator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from everstream.core.checkpointing.recovery_line import ChannelEnds, cycles
from everstream.core.ids import ChannelId, ShardId, WorkerId
from everstream.errors import GraphError, UserError
from everstream.events import EdgeLayout, OperatorLayout, PlanChanged
from everstream.pipeline.describing import Description, described, irrevocable
from everstream.pipeline.graph import Broadcast, ByKey, ByRoute, Edge, Graph, Kind, OnDemand
from everstream.pipeline.keys import KEY_GROUPS
from everstream.pipeline.operator import Operator
from everstream.pipeline.operators.builtin import EventTime
from everstream.pipeline.stream import Pipeline, planned_shards
from everstream.pipeline.validate import validate


@dataclass(frozen=True)
class Chain:
    """Fused operators in the order they run; a tree whose root is the first."""

    operators: tuple[str, ...]
    shards: int

    @property
    def name(self) -> str:
        return self.operators[0]


@dataclass
class Plan:
    """Everything that is fixed before a run starts. Made on the driver, sent to every worker."""

    graph: Graph
    chains: dict[str, Chain]
    shards: list[ShardId]
    channels: list[ChannelId]
    workers: list[list[ShardId]]
    inputs: dict[ShardId, list[ChannelId]] = field(default_factory=dict)
    outputs: dict[ShardId, list[ChannelId]] = field(default_factory=dict)
    worker_of: dict[ShardId, WorkerId] = field(default_factory=dict)
    chain_of: dict[str, str] = field(default_factory=dict)
    """Operator name -> name of the chain it is in."""
    links: list[ChannelEnds] = field(default_factory=list)
    cycles: list[tuple[ShardId, ...]] = field(default_factory=list)
    """The strongly connected components of the shards that hold a cycle."""
    key_groups: int | None = KEY_GROUPS
    """The number of key groups; None: as many as the operator has shards."""
    written: Graph | None = None
    """The graph as the user wrote it: not all of its operators set their number of shards."""

    def __post_init__(self) -> None:
        self.inputs = {shard: [] for shard in self.shards}
        self.outputs = {shard: [] for shard in self.shards}
        for channel in self.channels:
            self.outputs[channel.sender].append(channel)
            self.inputs[channel.receiver].append(channel)
        self.worker_of = {
            shard: WorkerId(number)
            for number, shards in enumerate(self.workers)
            for shard in shards
        }
        self.chain_of = {
            name: chain.name for chain in self.chains.values() for name in chain.operators
        }
        self.links = [ChannelEnds(str(c), c.sender, c.receiver) for c in self.channels]
        self.cycles = cycles(self.links, self.shards) if self.has_feedback else []

    @cached_property
    def described(self) -> dict[str, Description]:
        return described(self.graph)

    @cached_property
    def irrevocable(self) -> dict[str, str]:
        """Exactly-once sink -> why its output cannot be removed, for those that cannot remove it."""
        return irrevocable(self.graph)

    @property
    def has_feedback(self) -> bool:
        return any(edge.feedback for edge in self.graph.edges)

    def feedback(self, channel: ChannelId) -> bool:
        return self.graph.edges[channel.edge].feedback

    def cycle_of(self, shard: ShardId) -> tuple[ShardId, ...]:
        """The shards on a common cycle with this one; none if it is on no cycle."""
        return next((cycle for cycle in self.cycles if shard in cycle), ())

    def fused(self, edge: Edge) -> bool:
        together = self.chain_of[edge.sender] == self.chain_of[edge.receiver]
        return together and not edge.feedback

    def shard_for(self, operator: str, index: int = 0) -> ShardId:
        """The shard that runs this operator; raises a UserError that lists the operators."""
        if operator not in self.chain_of:
            known = ", ".join(self.graph.nodes)
            raise UserError(f"there is no operator '{operator}'; this pipeline has: {known}.")
        chain = self.chains[self.chain_of[operator]]
        if not 0 <= index < chain.shards:
            raise UserError(
                f"operator '{operator}' has {chain.shards} shard(s), numbered from 0; "
                f"there is no shard {index}."
            )
        return ShardId(chain.name, index)

    def source_shards(self) -> list[ShardId]:
        return [s for s in self.shards if self.graph.nodes[s.operator].kind is Kind.SOURCE]

    def sink_shards(self) -> list[ShardId]:
        """The shards that have something to commit: output, or dead letters."""
        return [
            shard
            for shard in self.shards
            if any(
                self.graph.nodes[name].kind is Kind.SINK
                or self.graph.nodes[name].dead_letters is not None
                for name in self.chains[shard.operator].operators
            )
        ]

    def order_matters(self) -> set[str]:
        """The operators whose output ends in an ordered sink: one frame in, one frame out."""
        return self.graph.leads_to(*(n.name for n in self.graph.nodes.values() if n.ordered))

    def in_order(self, shard: ShardId) -> bool:
        return bool(self.order_matters().intersection(self.chains[shard.operator].operators))

    def may_cut(self, shard: ShardId) -> bool:
        """Whether its batches may be cut: no operator here or downstream needs them whole."""
        whole = self.graph.leads_to(
            *(
                node.name
                for node in self.graph.nodes.values()
                if isinstance(node.what, Operator) and node.what.whole_batches
            )
        )
        return whole.isdisjoint(self.chains[shard.operator].operators)


def spread(plan: Plan, workers: int, at_least: int = 0) -> Plan:
    """The same plan over another number of workers; nothing is checked again.

    at_least: the minimum number of workers, even if some of them have no shards for now.
    """
    placed = place(list(plan.chains.values()), workers)
    return replace(plan, workers=[*placed, *([] for _ in range(at_least - len(placed)))])


def rescaled(plan: Plan, shards: Mapping[str, int], key_groups: int | None) -> Plan:
    """The same pipeline, on the same number of workers, with these numbers of shards.

    Operators that do not set their number of shards follow those before them.
    """
    assert plan.written is not None
    workers = len(plan.workers)
    # Its connectors were checked when the plan was made: one that is unreachable now does no harm.
    planned = _planned(plan.written, workers, shards, key_groups, connectors=False)
    return spread(planned, workers, at_least=workers)


def make_plan(
    pipeline: Pipeline,
    workers: int,
    shards: Mapping[str, int] | None = None,
    key_groups: int | None = KEY_GROUPS,
) -> Plan:
    """Check the pipeline, fuse operators and distribute the shards over at most `workers`.

    shards: overrides the number of shards that the pipeline sets for these operators.
    """
    return _planned(pipeline.graph, workers, shards or {}, key_groups)


def _planned(
    written: Graph,
    workers: int,
    wanted: Mapping[str, int],
    key_groups: int | None,
    *,
    connectors: bool = True,
) -> Plan:
    graph = planned_shards(written, wanted, key_groups)
    validate(graph, connectors=connectors)
    chains = _fuse(graph)
    _check_timed_sources(graph, chains)
    chain_of = {name: chain for chain in chains.values() for name in chain.operators}
    shards = [ShardId(c.name, i) for c in chains.values() for i in range(c.shards)]
    channels = [
        ChannelId(number, ShardId(chain_of[edge.sender].name, s), ShardId(edge.receiver, r))
        for number, edge in enumerate(graph.edges)
        if edge.feedback or chain_of[edge.sender] is not chain_of[edge.receiver]
        for s in range(chain_of[edge.sender].shards)
        for r in range(chain_of[edge.receiver].shards)
    ]
    placed = place(list(chains.values()), workers)
    return Plan(graph, chains, shards, channels, placed, key_groups=key_groups, written=written)


def _fuse(graph: Graph) -> dict[str, Chain]:
    root: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    for node in graph.upstream_first():
        inputs = graph.inputs(node.name)
        if len(inputs) == 1 and _fusable(graph, inputs[0]) and inputs[0].sender in root:
            root[node.name] = root[inputs[0].sender]
        else:
            root[node.name] = node.name
        members.setdefault(root[node.name], []).append(node.name)
    return {
        head: Chain(tuple(names), graph.nodes[head].shards or 1) for head, names in members.items()
    }


def _check_timed_sources(graph: Graph, chains: Mapping[str, Chain]) -> None:
    """Only an operator in the shards of the source can tell that the source is silent, or stop it."""
    for chain in chains.values():
        for name in chain.operators:
            what = graph.nodes[name].what
            if not isinstance(what, EventTime) or what.idle_after_s is what.max_drift_us is None:
                continue
            option = "max_drift" if what.idle_after_s is None else "idle_after"
            if graph.nodes[chain.name].kind is not Kind.SOURCE:
                raise GraphError(
                    name,
                    f"{option} needs event_time in the shards of the source, but the records move to "
                    "other shards before it",
                    "Put .event_time(...) right after the source.",
                )


def _fusable(graph: Graph, edge: Edge) -> bool:
    sender, receiver = graph.nodes[edge.sender], graph.nodes[edge.receiver]
    if sender.shards != receiver.shards:
        return False
    if isinstance(edge.routing, OnDemand):
        return edge.routing.fusable
    # With one shard on each side every routing is the same, and none needs a channel. But a route
    # can choose a shard that does not exist.
    return not isinstance(edge.routing, Broadcast | ByRoute) and sender.shards == 1


def place(chains: Sequence[Chain], workers: int) -> list[list[ShardId]]:
    """Shards of one chain go to different workers, each next one to the worker with the fewest."""
    placed: list[list[ShardId]] = [[] for _ in range(max(1, workers))]
    for chain in chains:
        for index in range(chain.shards):
            crowd = [sum(s.operator == chain.name for s in worker) for worker in placed]
            target = min(range(len(placed)), key=lambda h: (crowd[h], len(placed[h]), h))
            placed[target].append(ShardId(chain.name, index))
    return [worker for worker in placed if worker]


def shard_counts(plan: Plan) -> dict[str, int]:
    return {name: plan.chains[chain].shards for name, chain in plan.chain_of.items()}


def plan_changed(before: Plan, after: Plan, *, explained: bool = False) -> PlanChanged:
    return PlanChanged(
        before=shard_counts(before),
        after=shard_counts(after),
        workers_before=len(before.workers),
        operators=operators_of(after),
        edges=edges_of(after),
        shards=shards_of(after),
        workers=len(after.workers),
        explained=explained,
    )


def operators_of(plan: Plan) -> tuple[OperatorLayout, ...]:
    return tuple(
        OperatorLayout(
            node.name,
            node.kind.value,
            plan.chain_of[node.name],
            plan.chains[plan.chain_of[node.name]].shards,
        )
        for node in plan.graph.nodes.values()
    )


def edges_of(plan: Plan) -> tuple[EdgeLayout, ...]:
    return tuple(
        EdgeLayout(edge.sender, edge.receiver, _routing(plan, edge), edge.feedback)
        for edge in plan.graph.edges
    )


def shards_of(plan: Plan) -> dict[str, int]:
    return {str(shard): int(plan.worker_of[shard]) for shard in plan.shards}


def _routing(plan: Plan, edge: Edge) -> str:
    if plan.fused(edge):
        return "fused"
    match edge.routing:
        case ByKey():
            return "by key"
        case ByRoute():
            return "by route"
        case Broadcast():
            return "broadcast"
        case _:
            return "on demand"
