"""Checks a graph and its columns before Spark starts. Each error names the operator and the fix."""

import inspect
from collections.abc import Sequence
from typing import Any

import polars as pl

from everstream.errors import GraphError
from everstream.pipeline.graph import Broadcast, ByKey, ByRoute, Edge, Graph, Kind, Node, OnDemand
from everstream.pipeline.keyed_state.backend_choice import check_state_backend
from everstream.pipeline.operator import OUT, Operator
from everstream.pipeline.operators.builtin import Filter, Select, WithColumns
from everstream.pipeline.operators.schemas import check_columns_of, require
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source

_METHODS = (
    *("process", "process_batch", "on_start", "on_recover", "on_end", "on_stop"),
    *(
        "on_error",
        "should_checkpoint",
        "before_checkpoint",
        "on_checkpoint",
        "on_commit",
        "on_watermark",
        "on_timer",
    ),
)
_NOT_PLAIN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def validate(graph: Graph, *, connectors: bool = True) -> None:
    """Raise a GraphError for the first problem of a graph whose shards are planned."""
    if not graph.of_kind(Kind.SOURCE):
        raise GraphError(graph.name, "has no source", "Start with pipeline.source(...).")
    if not graph.of_kind(Kind.SINK):
        raise GraphError(graph.name, "has no sink", "End a stream with .sink(...) or .collect().")
    for node in graph.nodes.values():
        _check_reached(graph, node)
        _check_shards(node)
        _check_key(graph, node)
        _check_methods(node)
        check_state_backend(node)
        if node.ordered:
            _check_order(graph, node)
    for node in graph.nodes.values():
        if connectors and isinstance(node.what, Source | Sink):
            node.what.check()
    for node in graph.nodes.values():
        check_columns_of(graph, node)
    check_columns(graph)


def _check_reached(graph: Graph, node: Node) -> None:
    if node.kind is not Kind.SINK and not graph.outputs(node.name):
        raise GraphError(
            node.name,
            "its output goes nowhere",
            "End it with .sink(...) or .collect(), or remove the operator.",
        )


def _check_shards(node: Node) -> None:
    limit = node.what.max_shards
    if limit is not None and node.shards is not None and node.shards > limit:
        raise GraphError(
            node.name,
            f"{type(node.what).__name__} can have at most {limit} shard(s), not {node.shards}",
            f"Use shards={limit}.",
        )


def _check_key(graph: Graph, node: Node) -> None:
    keyed = [isinstance(edge.routing, ByKey) for edge in graph.inputs(node.name)]
    if any(keyed) and not all(keyed):
        raise GraphError(
            node.name,
            "some of its inputs are keyed and others are not",
            "Call .key_by(...) after .union(...).",
        )
    keyings: dict[str, set[int]] = {}
    for edge in graph.inputs(node.name):
        if isinstance(edge.routing, ByKey):
            groups = edge.routing.keying.groups
            if groups is not None and (node.shards or 1) > groups:
                raise GraphError(
                    node.name,
                    f"{node.shards} shards are more than the {groups} key groups",
                    f"Use at most shards={groups}, or start with more key groups (max_shards=...).",
                )
            keyings.setdefault(edge.side, set()).add(id(edge.routing))
    if any(len(of_one_side) > 1 for of_one_side in keyings.values()):
        raise GraphError(
            node.name, "its inputs are keyed in different ways", "Use one .key_by(...)."
        )


def _check_methods(node: Node) -> None:
    what = node.what
    if not isinstance(what, Operator):
        return
    own = type(what)
    if own.process is Operator.process and own.process_batch is Operator.process_batch:
        raise GraphError(
            node.name,
            f"class {own.__name__} defines neither process nor process_batch",
            "Define one of them.",
        )
    for name in _METHODS:
        method = getattr(what, name)
        if any(is_kind(method) for is_kind in _NOT_PLAIN):
            raise GraphError(
                node.name,
                f"{name} must be a plain method",
                "Use ctx.emit(...) instead of yield or async.",
            )


def _check_order(graph: Graph, node: Node) -> None:
    """Order is kept from a one-shard source over on-demand edges: each frame stays one frame.

    Frames of several shards arrive in any order. Only an ordered operator can wait for the right
    one. Any other would pass them along as they come, and the ordered operator would wait forever
    for a frame behind the one it has.
    """
    if node.shards != 1:
        what = f"an ordered {node.kind.value}"
        raise GraphError(node.name, f"{what} has one shard", "Use shards=1.")
    current, ordered = node, True
    while current.kind is not Kind.SOURCE:
        inputs = graph.inputs(current.name)
        if len(inputs) != 1:
            raise GraphError(
                node.name,
                f"cannot keep order: several streams meet at '{current.name}'",
                "Let one source feed it, or drop ordered=True.",
            )
        _check_ordered_edge(node, inputs[0])
        before = graph.nodes[inputs[0].sender]
        if before.shards == current.shards and inputs[0].routing != OnDemand(fusable=False):
            ordered = ordered or before.ordered
        elif before.shards == 1 or ordered:
            ordered = before.ordered
        else:
            raise GraphError(
                node.name,
                f"cannot keep order: '{before.name}' has {before.shards} shards, which meet in "
                f"'{current.name}' in any order",
                f"Give both the same number of shards, or put .process(..., ordered=True) before "
                f"'{current.name}', or drop ordered=True.",
            )
        current = before
    if current.shards != 1:
        raise GraphError(
            node.name,
            f"cannot keep order: source '{current.name}' has {current.shards} shards",
            f"Give '{current.name}' shards=1, or drop ordered=True.",
        )


def _check_ordered_edge(node: Node, edge: Edge) -> None:
    if isinstance(edge.routing, ByKey | ByRoute | Broadcast):
        names = {ByKey: "key_by", ByRoute: "route", Broadcast: "broadcast"}
        how = names[type(edge.routing)]
        raise GraphError(
            node.name,
            f"cannot keep order: {how} before '{edge.receiver}' splits the stream",
            f"Drop ordered=True, or the {how}.",
        )
    assert isinstance(edge.routing, OnDemand)


# A source that knows its columns provides them, and expressions show which ones they take and give.
# Nothing is computed: after the first operator whose columns are unknown, nothing is checked any more.
def check_columns(graph: Graph) -> None:
    """Raise a GraphError for the first operator that uses a column that does not exist."""
    known: dict[str, Sequence[str] | None] = {}
    for node in graph.upstream_first():
        if node.kind is Kind.SOURCE:
            assert isinstance(node.what, Source)
            known[node.name] = node.what.column_names()
            continue
        inputs = graph.inputs(node.name)
        plain = len(inputs) == 1 and inputs[0].output == OUT
        before = known.get(inputs[0].sender) if plain else None
        known[node.name] = None if before is None else _after(node, before)


def _after(node: Node, columns: Sequence[str]) -> Sequence[str] | None:
    """The columns that leave an operator; None if they are unknown."""
    what = node.what
    if isinstance(what, Filter):
        if isinstance(what.predicate, pl.Expr):
            require(node.name, [what.predicate], columns)
        return columns
    if not isinstance(what, Select | WithColumns):
        return None
    require(node.name, [*what.expressions, *what.named.values()], columns)
    given = [*(_output_of(one) for one in what.expressions), *what.named]
    if any(name is None for name in given):
        return None
    names = [name for name in given if name is not None]
    return names if isinstance(what, Select) else list(dict.fromkeys([*columns, *names]))


def _output_of(expression: Any) -> str | None:
    if isinstance(expression, str):
        return None if expression in ("", "*") or expression.startswith("^") else expression
    if not isinstance(expression, pl.Expr) or expression.meta.has_multiple_outputs():
        return None
    try:
        return expression.meta.output_name()
    except pl.exceptions.PolarsError:
        return None
