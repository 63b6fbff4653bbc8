"""Finds columns that do not exist before anything runs, as far as the columns are known.

A source that knows its columns says so, and expressions tell which ones they take and give. Nothing
is computed: from the first operator on of which that cannot be told, nothing is known any more.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from everstream.errors import GraphError
from everstream.pipeline.builtin import Filter, Select, WithColumns
from everstream.pipeline.graph import Graph, Kind, Node
from everstream.pipeline.operator import OUT
from everstream.pipeline.source import Source


def check_columns(graph: Graph) -> None:
    """Raise a GraphError for the first operator that takes a column which is not there."""
    known: dict[str, Sequence[str] | None] = {}
    for node in graph.upstream_first():
        if node.kind is Kind.SOURCE:
            assert isinstance(node.what, Source)
            known[node.name] = node.what.column_names()
            continue
        inputs = graph.inputs(node.name)
        plain = len(inputs) == 1 and inputs[0].port == OUT
        before = known.get(inputs[0].sender) if plain else None
        known[node.name] = None if before is None else _after(node, before)


def _after(node: Node, columns: Sequence[str]) -> Sequence[str] | None:
    """The columns that leave an operator; None if nobody can tell."""
    what = node.what
    if isinstance(what, Filter):
        if isinstance(what.predicate, pl.Expr):
            _require(node, [what.predicate], columns)
        return columns
    if not isinstance(what, Select | WithColumns):
        return None
    _require(node, [*what.expressions, *what.named.values()], columns)
    given = [*(_output_of(one) for one in what.expressions), *what.named]
    if any(name is None for name in given):
        return None
    names = [name for name in given if name is not None]
    return names if isinstance(what, Select) else list(dict.fromkeys([*columns, *names]))


def _require(node: Node, expressions: Iterable[Any], columns: Sequence[str]) -> None:
    for expression in expressions:
        for name in _taken_by(expression):
            if name not in columns:
                raise GraphError(
                    node.name,
                    f"there is no column '{name}'; the columns here are {', '.join(columns)}",
                    "Check the spelling, or add the column before.",
                )


def _taken_by(expression: Any) -> list[str]:
    """The columns that an expression names one by one."""
    if isinstance(expression, str):
        names = [expression]
    elif isinstance(expression, pl.Expr):
        try:
            names = expression.meta.root_names()
        except pl.exceptions.PolarsError:
            return []
    else:
        return []
    return [name for name in names if name not in ("", "*") and not name.startswith("^")]


def _output_of(expression: Any) -> str | None:
    if isinstance(expression, str):
        return None if expression in ("", "*") or expression.startswith("^") else expression
    if not isinstance(expression, pl.Expr) or expression.meta.has_multiple_outputs():
        return None
    try:
        return expression.meta.output_name()
    except pl.exceptions.PolarsError:
        return None
