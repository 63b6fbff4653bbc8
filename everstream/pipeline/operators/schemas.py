"""The columns of streams before anything runs, and which operators use columns that do not exist.

A source that knows its columns provides them. Operators are tried on columns without rows, so nothing is
computed and no function of the user is called. Behind an operator that may emit anything, such as a map
with a function, the columns are unknown, and nothing is checked any more.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import polars as pl

from everstream.errors import GraphError, UserError
from everstream.pipeline.aggregation.local_parts import LATE, LocalParts
from everstream.pipeline.graph import ByKey, Edge, Graph, Kind, Node
from everstream.pipeline.operator import OUT, Operator
from everstream.pipeline.operators.builtin import (
    AsRows,
    Branch,
    EventTime,
    Filter,
    FlatMap,
    Map,
    Select,
    WithColumns,
)
from everstream.pipeline.operators.deduplicate import Deduplicate
from everstream.pipeline.operators.models import Model
from everstream.pipeline.operators.purity import calls_functions
from everstream.pipeline.options import closest
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source

_Found: TypeAlias = dict[tuple[str, str], Any]
"""Operator and output -> what was found out on the way: streams may meet again behind a branch."""


def known_schema(
    graph: Graph, origins: Sequence[tuple[str, str]], seen: _Found | None = None
) -> pl.Schema | None:
    """The columns of a stream and their types, if its sources and operators determine them."""
    seen = {} if seen is None else seen
    schemas = [_schema_after(graph, name, output, seen) for name, output in origins]
    first = schemas[0] if schemas else None
    return first if first is not None and all(one == first for one in schemas) else None


def known_model(
    graph: Graph, origins: Sequence[tuple[str, str]], seen: _Found | None = None
) -> Model | None:
    """The class whose instances are the records of a stream, if they are typed rows."""
    seen = {} if seen is None else seen
    for name, _ in origins:
        if (name, "") not in seen:
            seen[name, ""] = _model_after(graph, name, seen)
    models = {seen[name, ""] for name, _ in origins}
    return models.pop() if len(models) == 1 else None


def _model_after(graph: Graph, name: str, seen: _Found) -> Model | None:
    what = graph.nodes[name].what
    if isinstance(what, Source | AsRows):
        return what.declared if isinstance(what.declared, Model) else None
    if isinstance(what, Map | FlatMap):
        return what.returns
    if not isinstance(what, Filter | EventTime | Deduplicate | Branch):
        return None
    edges = graph.inputs(name)
    if any(edge.feedback for edge in edges):
        return None
    return known_model(graph, [(edge.sender, edge.output) for edge in edges], seen)


def check_columns_of(graph: Graph, node: Node) -> None:
    """Raise a GraphError if an operator, or the key in front of it, uses a column that is not there."""
    what = node.what
    for edge in graph.inputs(node.name):
        before = known_schema(graph, [(edge.sender, edge.output)])
        if before is None or edge.feedback:
            continue
        where = f"the {edge.side} side" if edge.side else ""
        if isinstance(edge.routing, ByKey):
            selector = edge.routing.keying.selector
            require(node.written_as, [selector], list(before), where or "key_by")
        if isinstance(what, Operator):
            require(node.written_as, what.columns_used(edge.side), list(before), where)
        if isinstance(what, Select | WithColumns | Filter):
            _resolved(what, before, node.written_as)
        if isinstance(what, LocalParts):
            what.columns_after({"": before})  # refuses columns that it cannot add up
        if isinstance(what, Sink):
            what.check_columns(node.written_as, before)


def require(name: str, expressions: Iterable[Any], columns: Sequence[str], where: str = "") -> None:
    """Raise a GraphError for the first column that an expression takes and that is not among these."""
    for expression in expressions:
        for column in _taken_by(expression):
            if column not in columns:
                raise GraphError(
                    name,
                    f"{where and f'{where}: '}there is no column '{column}'; the columns here are "
                    f"{', '.join(columns)}",
                    f"Check the spelling, or add the column upstream.{closest(column, columns)}",
                )


def _schema_after(graph: Graph, name: str, output: str, seen: _Found) -> pl.Schema | None:
    """The columns that leave an operator."""
    node = graph.nodes[name]
    if output not in node.schemas:
        if (name, output) in seen:
            return None
        found = _found_after(graph, node, output, seen)
        if found is None:  # files, for example, show their columns only later
            seen[name, output] = None
            return None
        node.schemas[output] = found
    return node.schemas[output]


def _found_after(graph: Graph, node: Node, output: str, seen: _Found) -> pl.Schema | None:
    what = node.what
    if node.kind is Kind.SOURCE:
        assert isinstance(what, Source)
        types = what.column_types() if output == OUT else None
        return None if types is None else pl.Schema(types)
    assert isinstance(what, Operator)
    if output == OUT and what.emits is not None:
        return pl.Schema(what.emits)
    edges = graph.inputs(node.name)
    if any(edge.feedback for edge in edges):
        return None  # what comes back may have other columns
    sides: dict[str, list[Edge]] = {}
    for edge in edges:
        sides.setdefault(edge.side, []).append(edge)
    inputs: dict[str, pl.Schema] = {}
    for side, streams in sides.items():
        before = known_schema(graph, [(edge.sender, edge.output) for edge in streams], seen)
        if before is not None:
            inputs[side] = before
    if output != OUT:
        passes = isinstance(what, Branch) or (output == LATE and isinstance(what, LocalParts))
        return inputs.get("") if passes else None
    if isinstance(what, Select | WithColumns):
        try:
            return _resolved(what, inputs[""], node.written_as) if inputs else None
        except GraphError:
            return None  # the check of the graph reports it
    try:
        after = what.columns_after(inputs) if inputs or isinstance(what, Map | FlatMap) else None
    except (UserError, pl.exceptions.PolarsError):
        return None  # the same, or it needs a row
    return None if after is None else pl.Schema(after)


def _resolved(
    what: Select | WithColumns | Filter, before: pl.Schema, name: str
) -> pl.Schema | None:
    """The columns after an operator; None if a function of the user decides about them."""
    used = what.columns_used("")
    if any(map(calls_functions, used)) or any(callable(one) for one in used if not _is_expr(one)):
        return None
    empty = pl.DataFrame(schema=before)
    try:
        after: pl.Schema = _applied(what, empty).schema
        return after
    except pl.exceptions.PolarsError as error:
        if not isinstance(error, _WRONG) and _NEVER not in str(error):
            resolved: pl.Schema = _applied(what, empty.lazy()).collect_schema()
            return resolved  # it needs a row
        columns = ", ".join(f"{column} ({kind})" for column, kind in before.items())
        problem = str(error).strip().splitlines()[0]
        raise GraphError(
            name, f"{problem}; the columns here are {columns}", "Correct the expression."
        ) from None


def _applied(what: Select | WithColumns | Filter, frame: Any) -> Any:
    if isinstance(what, Filter):
        return frame.filter(what.predicate)
    change = frame.select if isinstance(what, Select) else frame.with_columns
    return change(*what.expressions, **what.named)


def _is_expr(value: object) -> bool:
    return isinstance(value, pl.Expr)


_NEVER = "cannot compare"
_WRONG = (
    pl.exceptions.ColumnNotFoundError,
    pl.exceptions.InvalidOperationError,
    pl.exceptions.SchemaError,
)


def _taken_by(expression: Any) -> list[str]:
    """The columns that an expression refers to by name."""
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
