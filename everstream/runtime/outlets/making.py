"""Makes the outlets of a shard: one for each edge of the graph that leaves it."""

from collections.abc import Callable

from everstream.core.frames import Frame
from everstream.core.plan import Plan
from everstream.core.shard import Shard
from everstream.pipeline.graph import Broadcast, ByKey, OnDemand, Routing
from everstream.runtime.outlets.base import Outlet, Wiring
from everstream.runtime.outlets.direct import DirectOutlet
from everstream.runtime.outlets.on_demand import DemandOutlet
from everstream.runtime.spilled import SpillSpace


def make_outlet(routing: Routing, wiring: Wiring, tolerant: bool = False) -> Outlet:
    match routing:
        case OnDemand():
            return DemandOutlet(wiring)
        case ByKey(keying=keying):
            return DirectOutlet(wiring, keying, tolerant)
        case Broadcast():
            return DirectOutlet(wiring)


def make_outlets(
    plan: Plan,
    shard: Shard,
    send: Callable[[Frame], None],
    log: Callable[[Frame], None] | None,
    space: SpillSpace | None = None,
) -> dict[int, Outlet]:
    outlets, order_matters = {}, plan.order_matters()
    for number, edge in enumerate(plan.graph.edges):
        channels = tuple(channel for channel in plan.outputs[shard.id] if channel.edge == number)
        if channels:
            ordered = edge.receiver in order_matters
            wiring = Wiring(shard, channels, send, ordered, edge.feedback, log, space)
            tolerant = plan.graph.nodes[edge.receiver].on_error != "fail"
            outlets[number] = make_outlet(edge.routing, wiring, tolerant)
    return outlets
