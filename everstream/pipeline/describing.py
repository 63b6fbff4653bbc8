"""What saved state belongs to: a description of each operator, kept with its checkpoints.

State is found by the operator's name, but after a change the same name may belong to a different
operator, with a different key, window or source. So each checkpoint carries these descriptions,
and a run compares them with its own before it restores any state. They are plain JSON, made from
the pipeline and never from saved state.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.local_parts import LocalParts
from everstream.pipeline.graph import ByKey, ByRoute, Edge, Graph, Kind, Node
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Operator
from everstream.pipeline.sink import Delivery, Sink
from everstream.pipeline.source import Source

Description: TypeAlias = dict[str, Any]
A_FUNCTION = "a function"
"""How functions are described: there is no way to tell whether two of them do the same."""


def described(graph: Graph) -> dict[str, Description]:
    """Operator -> what its saved state belongs to, for operators that may save any."""
    descriptions = {node.name: _description(graph, node) for node in graph.nodes.values()}
    return {name: about for name, about in descriptions.items() if about is not None}


def irrevocable(graph: Graph) -> dict[str, str]:
    """Exactly-once sink -> why its output cannot be removed, for those that cannot remove it."""
    sinks = [(node.name, node.what) for node in graph.nodes.values() if not _shows_twice(node)]
    reasons = {name: sink.irrevocable() for name, sink in sinks if isinstance(sink, Sink)}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _description(graph: Graph, node: Node) -> Description | None:
    about: Description | None
    if node.kind is Kind.SOURCE:
        assert isinstance(node.what, Source)
        about = node.what.describe_offsets()
    elif node.kind is Kind.SINK:
        assert isinstance(node.what, Sink)
        about = node.what.describe_output()
    else:
        assert isinstance(node.what, Operator)
        about = node.what.describe_state()
        keys = [] if about is None else _keys(graph, node.name)
        if about is not None and keys:
            about = {**about, "key": keys[0] if len(keys) == 1 else keys}
        routes = [] if about is None else _routes(graph.inputs(node.name))
        if about is not None and routes:
            about = {**about, "route": routes[0] if len(routes) == 1 else routes}
    return about


def _routes(inputs: Iterable[Edge]) -> list[str]:
    """By what its records are sent to its shards, where the user chose that."""
    found = [edge.routing.router.text for edge in inputs if isinstance(edge.routing, ByRoute)]
    return [*dict.fromkeys(found)]


def _keys(graph: Graph, name: str) -> list[str]:
    """What the operator is keyed by, for each input."""
    keys: dict[str, str] = {}
    for edge in graph.inputs(name):
        if isinstance(edge.routing, ByKey):
            above = graph.nodes[edge.sender].what
            local = above.keying if isinstance(above, LocalParts) else None
            keys.setdefault(edge.side, key_text(local or edge.routing.keying))
    return list(keys.values())


def key_text(keying: Keying) -> str:
    selector = keying.selector
    if isinstance(selector, str):
        return selector
    return str(selector) if isinstance(selector, pl.Expr) else A_FUNCTION


def check_names(graph: Graph) -> None:
    """Raise a UserError where the next change could give saved state to the wrong operator.

    Unnamed operators are numbered in the order in which they are written. As long as their
    descriptions differ, a later run notices when they change places.
    """
    about = described(graph)
    alike: dict[str, list[str]] = {}
    for node in graph.nodes.values():
        if node.named or node.name not in about:
            continue
        if "sink" in about[node.name] and _shows_twice(node):
            continue
        alike.setdefault(repr(sorted(about[node.name].items())), []).append(node.name)
    for names in alike.values():
        if len(names) > 1:
            raise UserError(
                f"{_listed(names)} have no name=, and nothing else tells them apart. If one is "
                "added, moved or removed, the others would restore its state. Give each a "
                "name=... (or, for your own operator that keeps no state, set "
                "repeatable = True in its class)."
            )


def _shows_twice(node: Node) -> bool:
    """A sink without transactions: checkpoints contain nothing of it."""
    return isinstance(node.what, Sink) and node.what.delivery is not Delivery.EXACTLY_ONCE


def _listed(names: Iterable[str]) -> str:
    *first, last = (f"'{name}'" for name in names)
    return f"{', '.join(first)} and {last}"
