"""The fluent interface a user writes pipelines with: `Pipeline` and `Stream`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from everstream.errors import GraphError, UserError
from everstream.pipeline import builtin
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import Broadcast, ByKey, Edge, Graph, Kind, Node, OnDemand, Routing
from everstream.pipeline.keys import Keying, key_selector
from everstream.pipeline.local_parts import LATE
from everstream.pipeline.operator import OUT, Operator
from everstream.pipeline.rejects import OnError, checked
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source
from everstream.pipeline.time_methods import TimeMethods
from everstream.pipeline.times import Unit

if TYPE_CHECKING:
    from everstream.spark.result import RunResult

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Pipeline:
    """A graph of operators with a name; `run` executes it on Spark."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"pipeline name {name!r}: use letters, digits, '-', '_' and '.', because the "
                "name becomes part of file names."
            )
        self.name = name
        self.graph = Graph(name)

    def source(self, source: Source, *, name: str | None = None, shards: int = 1) -> Stream:
        """Add a source; its records flow out of the stream this returns."""
        if not isinstance(source, Source):
            raise UserError(f"source() takes a Source such as es.TextLines(...), not {source!r}.")
        node = self._add(
            name, _base_name(source), Kind.SOURCE, source, shards, on_error=source.on_error
        )
        return Stream(self, [(node.name, OUT)])

    def run(self, **options: Any) -> RunResult:
        """Run on Spark until the sources end or somebody stops it; see `everstream.run`."""
        from everstream.spark.run import run

        return run(self, **options)

    def _add(
        self,
        name: str | None,
        base: str,
        kind: Kind,
        what: Source | Operator | Sink,
        shards: int | None,
        **more: Any,
    ) -> Node:
        if name is None:
            name = self._free_name(base)
        if not _NAME.fullmatch(name):
            raise GraphError(name, "is not a usable name", "Use letters, digits, '-', '_', '.'.")
        if name in self.graph.nodes:
            raise GraphError(
                name,
                "this name is used twice",
                "State is found by the operator's name: give each its own with name=...",
            )
        if shards is not None and (not isinstance(shards, int) or shards < 1):
            raise GraphError(name, f"shards={shards!r} makes no sense", "Give a number from 1 up.")
        node = Node(name, kind, what, shards, **more)
        if node.on_error == "dead_letter":
            from everstream.connectors.dead_letters import DeadLetters

            node.dead_letters = DeadLetters()
        self.graph.nodes[name] = node
        return node

    def _free_name(self, base: str) -> str:
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        return next(n for n in itertools.chain([base], numbered) if n not in self.graph.nodes)


class Stream(TimeMethods):
    """Records on their way from one operator (or, after `union`, several) to the next.

    Each method adds an operator and returns the stream that leaves it. Every one of them takes
    `name=` (operators keep their state under it), `shards=` (default: as many as upstream) and
    `on_error=`: what to do with a record that the operator raises on. "fail" (the default) ends
    the run, "skip" counts the record and goes on, "dead_letter" also keeps it in the store.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        origins: list[tuple[str, str]],
        routing: Routing | None = None,
    ) -> None:
        self.pipeline = pipeline
        self._origins = origins
        self._routing: Routing = routing if routing is not None else OnDemand()
        self._late_origins: list[tuple[str, str]] = []
        """Where late records leave, if not where all others do."""

    def map(self, function: Callable[[Any], Any], **options: Any) -> Stream:
        """Each record becomes function(record)."""
        return self._then("map", builtin.Map(_function("map", function)), options)

    def flat_map(self, function: Callable[[Any], Iterable[Any]], **options: Any) -> Stream:
        """Each record becomes all that function(record) gives."""
        return self._then("flat_map", builtin.FlatMap(_function("flat_map", function)), options)

    def filter(self, predicate: builtin.Predicate, **options: Any) -> Stream:
        """Keep the records for which a Polars expression or a function holds."""
        return self._then("filter", builtin.Filter(_predicate("filter", predicate)), options)

    def map_batches(self, function: Callable[[Batch], Batch], **options: Any) -> Stream:
        """Each batch becomes function(batch): a Polars DataFrame or a list of records."""
        operator = builtin.MapBatches(_function("map_batches", function))
        return self._then("map_batches", operator, options)

    def with_columns(
        self,
        *columns: Any,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        **named: Any,
    ) -> Stream:
        """Add or replace columns, as in Polars."""
        operator = builtin.WithColumns(columns, named)
        options = {"name": name, "shards": shards, "on_error": on_error}
        return self._then("with_columns", operator, options)

    def select(
        self,
        *columns: Any,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        **named: Any,
    ) -> Stream:
        """Keep or compute just these columns, as in Polars."""
        operator = builtin.Select(columns, named)
        options = {"name": name, "shards": shards, "on_error": on_error}
        return self._then("select", operator, options)

    def key_by(self, key: Any, *more: Any) -> Stream:
        """Send records of one key to one shard of the next operator.

        The key is a function of the record, or a column name, or a Polars expression; several
        columns make a compound key.
        """
        return self._routed(ByKey(Keying(key_selector(key, more))))

    def broadcast(self) -> Stream:
        """Send every record to every shard of the next operator."""
        return self._routed(Broadcast())

    def on_demand(self) -> Stream:
        """Send each frame to the shard of the next operator that asks first.

        This is the default; said aloud it also keeps the two operators apart, so that they can
        run in two processes even if they have equally many shards.
        """
        return self._routed(OnDemand(fusable=False))

    def aggregate(
        self, init: Callable[[], Any], update: Callable[[Any, Any], Any], **options: Any
    ) -> Stream:
        """Per key: value = update(value, record), starting from init(). Emits (key, value)."""
        operator = builtin.Aggregate(_function("init", init), _function("update", update))
        return self._then("aggregate", operator, options, needs_key=True)

    def reduce(self, function: Callable[[Any, Any], Any], **options: Any) -> Stream:
        """Per key: value = function(value, record), starting from the first record."""
        operator = builtin.Reduce(_function("reduce", function))
        return self._then("reduce", operator, options, needs_key=True)

    def process(self, operator: Operator, **options: Any) -> Stream:
        """Add an operator of your own: an instance of a subclass of es.Operator."""
        if isinstance(operator, type) or not isinstance(operator, Operator):
            raise UserError(
                f"process() takes an instance of a subclass of es.Operator, not {operator!r}. "
                "For a plain function use map, flat_map or map_batches."
            )
        return self._then(_base_name(operator), operator, options)

    def transact(
        self,
        *transactions: Any,
        parallelism: int = 1,
        recovery: str = "delta",
        timestamp: str | None = None,
        unit: Unit = "us",
        epoch: str | int = "batch",
        select: str = "transaction",
        **options: Any,
    ) -> Stream:
        """Run a transaction over shared tables for each event; emits what became of each.

        Transactions are functions declared with `es.transaction`. If there are several, the
        column `select` names the one an event asks for. The result is that of running the events
        one by one, on `parallelism` threads: in the order they arrive, or, with `timestamp=`, in
        the order of that column within each epoch. An epoch is a "batch", a number of events, or
        what a "watermark" completes (see `event_time`; `unit` is that of the times). `recovery`
        says how the tables are saved in checkpoints. It has one shard. See docs/transactions.md.
        """
        from everstream.transactions.operator import Transact

        operator = Transact(
            transactions,
            parallelism=parallelism,
            recovery=recovery,
            timestamp=timestamp,
            unit=unit,
            epoch=epoch,
            select=select,
        )
        if epoch == "watermark" and not self._has_event_time():
            raise GraphError(
                options.get("name") or "transact",
                "waits for watermarks, but nothing before it announces any",
                "Put .event_time(...) right behind the source.",
            )
        given = options.get("shards")
        if given not in (None, 1):
            raise GraphError(
                options.get("name") or "transact",
                f"transactions see every key of their tables, so they have one shard, not {given}",
                "Say parallelism=... to use more threads.",
            )
        return self._then("transact", operator, {**options, "shards": 1})

    def branch(self, *predicates: builtin.Predicate, **options: Any) -> tuple[Stream, ...]:
        """Split the stream: one stream per predicate (the first that holds), and one for the rest.

        small, large = numbers.branch(pl.col("n") < 100)
        """
        if not predicates:
            raise UserError("branch() needs at least one predicate.")
        operator = builtin.Branch([_predicate("branch", given) for given in predicates])
        node = self._attach("branch", Kind.OPERATOR, operator, options)
        ports = [builtin.branch_port(index) for index in range(len(predicates) + 1)]
        return tuple(Stream(self.pipeline, [(node.name, port)]) for port in ports)

    def union(self, *others: Stream) -> Stream:
        """This stream and the others as one; order between them is not defined."""
        origins = list(self._origins)
        for other in others:
            if other.pipeline is not self.pipeline:
                raise UserError("union() joins streams of one pipeline; these are of two.")
            origins += other._origins
        return Stream(self.pipeline, origins)

    def feedback(self, to: Stream | str) -> Stream:
        """Send these records back into an operator upstream, beside what it gets anyway.

        hops = events.key_by("node").process(Hop(), name="hop")
        again, done = hops.branch(lambda hop: hop["left"] > 0)
        again.feedback(to=hops)

        `to` is that operator's name, or the stream that leaves it. The records take the way its
        other records come (the same key). When the sources have ended and nothing moves on the
        cycle any more, the cycle ends, too.
        """
        names = {name for name, _ in to._origins} if isinstance(to, Stream) else {to}
        if len(names) != 1:
            raise UserError("feedback() leads to one operator; give its name or its stream.")
        graph = self.pipeline.graph
        (target,) = names
        if target not in graph.nodes or graph.nodes[target].kind is not Kind.OPERATOR:
            operators = ", ".join(node.name for node in graph.of_kind(Kind.OPERATOR))
            raise UserError(
                f"feedback() cannot lead to '{target}': it must be an operator of this pipeline, "
                f"one of {operators}."
            )
        for sender, port in self._origins:
            if target not in graph.leads_to(sender):
                raise GraphError(
                    sender,
                    f"its feedback leads to '{target}', which is not upstream of it",
                    "To join two streams use .union(...).",
                )
            routing = graph.inputs(target)[0].routing
            graph.edges.append(Edge(sender, target, routing, port, feedback=True))
        return self

    def port(self, name: str) -> Stream:
        """What an operator emits with ctx.emit(record, port=name)."""
        if name == LATE and self._late_origins:
            return Stream(self.pipeline, self._late_origins)
        return Stream(self.pipeline, [(sender, name) for sender, _ in self._origins])

    def sink(
        self,
        sink: Sink,
        *,
        name: str | None = None,
        shards: int | None = None,
        ordered: bool = False,
    ) -> Pipeline:
        """Let the stream end in a sink. Ordered: in the order the source gave the records."""
        if not isinstance(sink, Sink):
            raise UserError(f"sink() takes a Sink such as es.JsonLines(...), not {sink!r}.")
        if ordered:
            shards = 1 if shards is None else shards
        options = {"name": name, "shards": shards}
        self._attach(_base_name(sink), Kind.SINK, sink, options, ordered=ordered)
        return self.pipeline

    def collect(self, *, name: str = "collect", ordered: bool = False) -> Pipeline:
        """Let the stream end in the result: `pipeline.run().collected(name)`."""
        from everstream.connectors.collect import Collect

        return self.sink(Collect(), name=name, ordered=ordered)

    def _has_event_time(self) -> bool:
        """Whether an operator somewhere before this stream announces watermarks."""
        graph = self.pipeline.graph
        waiting, seen = [name for name, _ in self._origins], set[str]()
        while waiting:
            name = waiting.pop()
            what = graph.nodes[name].what
            if isinstance(what, Operator) and what.announces_watermarks:
                return True
            if name not in seen:
                seen.add(name)
                waiting += [edge.sender for edge in graph.inputs(name)]
        return False

    def _routed(self, routing: Routing) -> Stream:
        return Stream(self.pipeline, self._origins, routing)

    def _then(
        self, base: str, operator: Operator, options: dict[str, Any], needs_key: bool = False
    ) -> Stream:
        node = self._attach(base, Kind.OPERATOR, operator, options, needs_key=needs_key)
        return Stream(self.pipeline, [(node.name, OUT)])

    def _attach(
        self,
        base: str,
        kind: Kind,
        what: Operator | Sink,
        options: dict[str, Any],
        **more: Any,
    ) -> Node:
        unknown = set(options) - {"name", "shards", "on_error"}
        if unknown:
            raise UserError(
                f"{base}() does not know {', '.join(sorted(unknown))}; it takes name=, shards= "
                "and on_error=."
            )
        if "on_error" in options:
            more["on_error"] = checked(options["on_error"], f"{base}()")
        node = self.pipeline._add(
            options.get("name"), base, kind, what, options.get("shards"), **more
        )
        for sender, port in self._origins:
            self.pipeline.graph.edges.append(Edge(sender, node.name, self._routing, port))
        return node


def planned_shards(graph: Graph) -> Graph:
    """A copy of the graph in which every operator has its number of shards."""
    planned = Graph(graph.name, {name: replace(n) for name, n in graph.nodes.items()}, graph.edges)
    for node in planned.upstream_first():
        if planned.nodes[node.name].shards is None:
            feeding = [planned.nodes[e.sender].shards or 1 for e in planned.inputs(node.name)]
            planned.nodes[node.name].shards = max(feeding, default=1)
    return planned


def _function(where: str, function: Any) -> Any:
    if not callable(function):
        raise UserError(f"{where} takes a function, not {function!r}.")
    return function


def _predicate(where: str, given: Any) -> Any:
    if not callable(given) and not isinstance(given, pl.Expr):
        raise UserError(f"{where} takes a function or a Polars expression, not {given!r}.")
    return given


def _base_name(what: object) -> str:
    """TextLines -> text_lines"""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(what).__name__).lower()
