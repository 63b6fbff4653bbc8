"""The base of every kind of stream: where it comes from, and how an operator is added to it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.graph import Edge, Kind, Node, OnDemand, Routing
from everstream.pipeline.keyed_state.backend_choice import checked_state
from everstream.pipeline.operator import OUT, Operator, StateKind
from everstream.pipeline.operators.models import OnInstances, OnInstancesAsync, annotated_models
from everstream.pipeline.operators.schemas import check_columns_of, known_model, known_schema
from everstream.pipeline.rejects import OnError, checked
from everstream.pipeline.sink import Sink
from everstream.pipeline.types import T

if TYPE_CHECKING:
    from everstream.pipeline.stream import Pipeline, Stream


@dataclass(frozen=True)
class Options:
    """The options that every method that adds an operator takes."""

    name: str | None = None
    shards: int | None = None
    on_error: OnError = "fail"
    state: StateKind | None = None
    part_of: str | None = None
    """The operator that the user wrote, if this one is a part of it."""


class StreamBase(Generic[T]):
    """Records on their way from one operator (or several) to the next, and how they travel."""

    def __init__(
        self, pipeline: Pipeline, origins: list[tuple[str, str]], routing: Routing | None = None
    ) -> None:
        self.pipeline = pipeline
        self._origins = origins
        self._routing: Routing = routing if routing is not None else OnDemand()
        self._late_origins: list[tuple[str, str]] = []
        """The output for late records, if it is not the main one."""

    @property
    def schema(self) -> pl.Schema | None:
        """The columns of the records and their types; None if they are not known before the run.

        Sources with a schema know them, and expressions keep them known. A map with a function may
        return anything, so behind it they are unknown.

        >>> numbers = es.Pipeline("squares").source(es.Range(3, column="n"))
        >>> dict(numbers.with_columns(square=pl.col("n") ** 2).schema)
        {'n': Int64, 'square': Int64}
        """
        return known_schema(self.pipeline.graph, self._origins)

    def _on_rows(self, function: Any) -> Any:
        """A function of one record; on typed rows, it gets instances."""
        if not callable(function) or isinstance(function, pl.Expr):
            return function
        model = annotated_models(function)[0] or known_model(self.pipeline.graph, self._origins)
        if model is None:
            return function
        called = getattr(type(function), "__call__", None)  # noqa: B004
        waits = any(map(inspect.iscoroutinefunction, (function, called)))
        return (OnInstancesAsync if waits else OnInstances)(model, function)

    def _then(
        self, base: str, operator: Operator, options: Options, ordered: bool = False
    ) -> Stream[Any]:
        """Adds an operator, and returns the stream that leaves it; `base` is its default name."""
        node = self._attach(base, Kind.OPERATOR, operator, options, ordered)
        return self._leaving([(node.name, OUT)])

    def _leaving(
        self, origins: list[tuple[str, str]], routing: Routing | None = None
    ) -> Stream[Any]:
        from everstream.pipeline.stream import Stream

        return Stream(self.pipeline, origins, routing)

    def _attach(
        self, base: str, kind: Kind, what: Operator | Sink, options: Options, ordered: bool = False
    ) -> Node:
        on_error = checked(options.on_error, f"{base}()")
        node = self.pipeline._add(options.name, base, kind, what, options.shards, on_error, ordered)
        node.state = checked_state(options.state, f"{base}()")
        node.part_of = options.part_of
        graph = self.pipeline.graph
        if isinstance(what, Operator):
            function = getattr(what, "function", None) or getattr(what, "predicate", None)
            own = annotated_models(function)[0] if callable(function) else None
            node.model = own or known_model(graph, self._origins)
        before = len(graph.edges)
        graph.edges += (
            Edge(sender, node.name, self._routing, output) for sender, output in self._origins
        )
        self._check_columns(node, before)
        return node

    def _check_columns(self, node: Node, before: int) -> None:
        """Checks the columns that a new operator uses; without it, the graph had `before` edges."""
        graph = self.pipeline.graph
        try:
            check_columns_of(graph, node)
        except UserError:  # as in a notebook, where the next try follows
            del graph.edges[before:]
            del graph.nodes[node.name]
            raise


def function_for(where: str, function: Any) -> Any:
    """The argument if it is a function; otherwise raises a UserError."""
    if not callable(function):
        raise UserError(f"{where} takes a function, not {function!r}.")
    return function


def predicate_for(where: str, given: Any) -> Any:
    """The argument if it is a function or an expression; otherwise raises a UserError."""
    if not callable(given) and not isinstance(given, pl.Expr):
        raise UserError(f"{where} takes a function or a Polars expression, not {given!r}.")
    return given
