"""Makes events of plans: what operators, streams and shards a run has, and how they change."""

from everstream.core.checkpointing.manifest import shard_counts
from everstream.core.plan import Plan
from everstream.events import EdgeLayout, OperatorLayout, PlanChanged
from everstream.pipeline.graph import Broadcast, ByKey, Edge


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
        case Broadcast():
            return "broadcast"
        case _:
            return "on demand"
