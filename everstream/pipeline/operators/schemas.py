"""The columns of streams before anything runs, and which operators use columns that do not exist.

A source that knows its columns provides them. Expressions are resolved against columns without rows, so
nothing is computed and no function of the user is called. Behind an operator that may emit anything, such
as a map with a function, the columns are unknown, and nothing is checked any more.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from everstream.errors import GraphError
from everstream.pipeline.aggregation.aggregate_kinds import Simple
from everstream.pipeline.aggregation.local_parts import LATE, LocalParts
from everstream.pipeline.aggregation.running_functions import RunningFunctions
from everstream.pipeline.event_time.window_rows import WindowRows, WindowTop
from everstream.pipeline.graph import ByKey, Edge, Graph, Kind, Node
from everstream.pipeline.operator import OUT, Operator
from everstream.pipeline.operators.builtin import Branch, EventTime, Filter, Select, WithColumns
from everstream.pipeline.operators.deduplicate import Deduplicate
from everstream.pipeline.operators.lookup import Lookup
from everstream.pipeline.operators.purity import all_plain
from everstream.pipeline.options import closest
from everstream.pipeline.source import Source


def known_schema(graph: Graph, origins: Sequence[tuple[str, str]]) -> pl.Schema | None:
    """The columns of a stream and their types, if its sources and operators determine them."""
    schemas = [_schema_after(graph, name, output) for name, output in origins]
    first = schemas[0] if schemas else None
    return first if first is not None and all(one == first for one in schemas) else None


def check_columns_of(graph: Graph, node: Node) -> None:
    """Raise a GraphError if a new operator, or the key in front of it, uses a column that is not there."""
    for edge in graph.inputs(node.name):
        before = known_schema(graph, [(edge.sender, edge.output)])
        if before is None:
            continue
        if isinstance(edge.routing, ByKey):
            selector = edge.routing.keying.selector
            require(node.written_as, [selector], list(before), "key_by")
        require(node.written_as, _used_by(node.what), list(before))
        if isinstance(node.what, Select | WithColumns):
            _resolved(node.what, before, node.written_as)
        if isinstance(node.what, LocalParts):
            empty = pl.DataFrame(schema=before)
            for name, one in node.what.aggregates.named.items():
                if isinstance(one, Simple):
                    one.parts(name, empty)  # refuses columns that it cannot add up


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


def _schema_after(graph: Graph, name: str, output: str) -> pl.Schema | None:
    """The columns that leave an operator."""
    node = graph.nodes[name]
    what = node.what
    if node.kind is Kind.SOURCE:
        assert isinstance(what, Source)
        types = what.column_types() if output == OUT else None
        return None if types is None else pl.Schema(types)
    if isinstance(what, Operator) and what.emits is not None and output == OUT:
        return pl.Schema(what.emits)
    passes = isinstance(what, Branch) or (isinstance(what, LocalParts) and output == LATE)
    if not passes and (output != OUT or not isinstance(what, _TRACED)):
        return None
    above: list[Edge] = [edge for edge in graph.inputs(name) if not edge.feedback]
    before = known_schema(graph, [(edge.sender, edge.output) for edge in above])
    if before is None or not isinstance(what, Select | WithColumns | Lookup):
        return before
    if isinstance(what, Lookup):
        return pl.Schema({**before, **what.schema})
    try:
        return _resolved(what, before, node.written_as)
    except GraphError:
        return None  # the check of the graph reports it


_TRACED = (EventTime, Filter, Select, WithColumns, Deduplicate, Lookup)


def _resolved(what: Select | WithColumns, before: pl.Schema, name: str) -> pl.Schema | None:
    """The columns after an operator; None if a function of the user decides about them."""
    if not all_plain([*what.expressions, *what.named.values()]):
        return None
    empty = pl.DataFrame(schema=before)
    change = empty.select if isinstance(what, Select) else empty.with_columns
    try:
        return change(*what.expressions, **what.named).schema
    except _WRONG as error:
        columns = ", ".join(f"{column} ({kind})" for column, kind in before.items())
        problem = str(error).strip().splitlines()[0]
        raise GraphError(
            name, f"{problem}; the columns here are {columns}", "Correct the expression."
        ) from None
    except pl.exceptions.PolarsError:
        return None  # it needs a row


_WRONG = (
    pl.exceptions.ColumnNotFoundError,
    pl.exceptions.InvalidOperationError,
    pl.exceptions.SchemaError,
)


def _used_by(what: object) -> list[Any]:
    """Expressions and names of columns that an operator uses."""
    if isinstance(what, Select | WithColumns):
        return [*what.expressions, *what.named.values()]
    if isinstance(what, Filter):
        return [what.predicate]
    if isinstance(what, Branch):
        return what.predicates
    if isinstance(what, EventTime):
        return [what.time.what]
    if isinstance(what, WindowRows):
        functions = [one.column for one in what.functions.values()]
        by = what.by if isinstance(what, WindowTop) else []
        return [*what.keys, what.time.what, *functions, *by]
    if isinstance(what, RunningFunctions):
        return [what.key, *(one.column for one in what.functions.values())]
    if isinstance(what, Deduplicate | Lookup):
        return what.names
    if isinstance(what, LocalParts):
        selector = what.keying.selector if what.keying is not None else None
        columns = [getattr(one, "column", None) for one in what.aggregates.named.values()]
        return [selector, *columns, what.time.what if what.time is not None else None]
    return []


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
