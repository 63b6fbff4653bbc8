"""The methods of a stream that route records: to which shard, which branch, which sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, overload

import polars as pl

from everstream.errors import GraphError, UserError
from everstream.pipeline.aggregation.local_parts import LATE
from everstream.pipeline.graph import Broadcast, ByKey, ByRoute, Edge, Kind, OnDemand, base_name
from everstream.pipeline.keys import Keying, key_selector
from everstream.pipeline.methods.base import Options, StreamBase, predicate_for
from everstream.pipeline.operators import builtin
from everstream.pipeline.rejects import OnError
from everstream.pipeline.routes import Route, Router, checked_route, takes_records
from everstream.pipeline.sink import Sink
from everstream.pipeline.types import Column, Key, T, U

if TYPE_CHECKING:
    from everstream.pipeline.methods.keyed import KeyedStream
    from everstream.pipeline.stream import Pipeline, Stream


class FlowMethods(StreamBase[T]):
    """The routing methods of a `Stream`, the only class that inherits this."""

    @overload
    def key_by(self, key: Callable[[T], Key]) -> KeyedStream[Key, T]: ...
    @overload
    def key_by(self, key: Column, *more: Column) -> KeyedStream[Any, T]: ...
    def key_by(self, key: Callable[[T], Any] | Column, *more: Column) -> KeyedStream[Any, T]:
        """Send records with equal keys to the same shard of the next operator.

        The key is a function of the record, a column name, or a Polars expression. Several
        columns make a compound key.

        >>> words = es.Pipeline("initials").source(es.FromList(["be", "to", "by"]))
        >>> longest = words.key_by(lambda word: word[0]).reduce(max)
        >>> longest.collect().run().collected()
        [('b', 'be'), ('t', 'to'), ('b', 'by')]
        """
        from everstream.pipeline.methods.keyed import KeyedStream

        routing = ByKey(Keying(key_selector(self._on_rows(key), more)))
        return KeyedStream(self.pipeline, self._origins, routing)

    def route(self, to: Route) -> Stream[T]:
        """Choose the shard of the next operator that each record goes to.

        to: a function of the record and the number of shards, which returns a number from 0 to
        shards - 1; or a column or Polars expression with that number; or a function of the number
        of shards that returns such an expression. Any other number is an error.

        The next operator has no key. If it keeps state per key, it cannot be rescaled unless it
        declares how to redistribute that state.

        >>> class Where(es.Operator):
        ...     def process(self, record, ctx):
        ...         ctx.emit((record, ctx.shard))
        >>> numbers = es.Pipeline("halves").source(es.Range(4))
        >>> routed = numbers.route(lambda n, shards: n * shards // 4)
        >>> sorted(routed.process(Where(), shards=2).collect().run().collected())
        [(0, 0), (1, 0), (2, 1), (3, 1)]
        """
        route = checked_route(to)
        typed: Any = self._on_rows(route)
        if typed is not route and takes_records(route):
            route = lambda record, shards: typed(record, shards)  # noqa: E731
        return self._leaving(self._origins, ByRoute(Router(route)))

    def broadcast(self) -> Stream[T]:
        """Send every record to every shard of the next operator.

        >>> rates = es.Pipeline("rates").source(es.FromList([7]))
        >>> rates.broadcast().map(str, shards=3).collect().run().collected()
        ['7', '7', '7']
        """
        return self._leaving(self._origins, Broadcast())

    def on_demand(self) -> Stream[T]:
        """Send each frame to the shard of the next operator that asks first.

        This is the default. If you call it, the two operators are also not fused, so they can run
        in two processes even if they have the same number of shards.

        >>> numbers = es.Pipeline("farm").source(es.Range(3))
        >>> numbers.on_demand().map(lambda n: n * n).collect().run().collected()
        [0, 1, 4]
        """
        return self._leaving(self._origins, OnDemand(fusable=False))

    def branch(
        self,
        *predicates: Callable[[T], object] | pl.Expr,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> tuple[Stream[T], ...]:
        """Split the stream: one stream per predicate, and a last one for the remaining records.

        A record goes to the stream of the first predicate that holds.

        >>> pipeline = es.Pipeline("sizes")
        >>> small, large = pipeline.source(es.Range(5)).branch(lambda n: n < 2)
        >>> _ = small.collect(name="small")
        >>> _ = large.collect(name="large")
        >>> result = pipeline.run()
        >>> result.collected("small"), result.collected("large")
        ([0, 1], [2, 3, 4])
        """
        if not predicates:
            raise UserError("branch() needs at least one predicate.")
        operator = builtin.Branch([predicate_for("branch", given) for given in predicates])
        options = Options(name, shards, on_error)
        node = self._attach("branch", Kind.OPERATOR, operator, options)
        outputs = [builtin.branch_output(index) for index in range(len(predicates) + 1)]
        return tuple(self._leaving([(node.name, output)]) for output in outputs)

    def union(self, *others: Stream[U]) -> Stream[T | U]:
        """Merge this stream and the others into one; the order between them is undefined.

        >>> pipeline = es.Pipeline("both")
        >>> one, two = pipeline.source(es.Range(2)), pipeline.source(es.Range(7, 9))
        >>> sorted(one.union(two).collect().run().collected())
        [0, 1, 7, 8]
        """
        origins = list(self._origins)
        for other in others:
            if other.pipeline is not self.pipeline:
                raise UserError("union() needs streams of the same pipeline; these are from two.")
            origins += other._origins
        return self._leaving(origins)

    def feedback(self, to: Stream | str) -> Self:
        """Send these records back to an operator upstream, in addition to its other input.

        `to` is the name of that operator, or the stream that leaves it. The records are routed
        like its other input (by the same key). The cycle ends when the sources have ended and no
        record is moving on it any more. Aligned checkpoints do not work on a cycle: choose
        another protocol.

        >>> numbers = es.Pipeline("halving").source(es.FromList([8, 3]))
        >>> halves = numbers.map(lambda n: n // 2)
        >>> again, done = halves.branch(lambda n: n > 1)
        >>> _ = again.feedback(to=halves)
        >>> unaligned = es.Coordinated(mode="unaligned")
        >>> done.collect().run(checkpoint=unaligned).collected()
        [1, 1]
        """
        names = {name for name, _ in to._origins} if isinstance(to, StreamBase) else {to}
        if len(names) != 1:
            raise UserError("feedback() leads to one operator: give its name or its stream.")
        graph = self.pipeline.graph
        (target,) = names
        if target not in graph.nodes or graph.nodes[target].kind is not Kind.OPERATOR:
            operators = ", ".join(node.name for node in graph.of_kind(Kind.OPERATOR))
            raise UserError(
                f"feedback() cannot lead to '{target}'. Give an operator of this pipeline, one of "
                f"{operators}."
            )
        for sender, output in self._origins:
            if target not in graph.leads_to(sender):
                raise GraphError(
                    sender,
                    f"its feedback leads to '{target}', which is not upstream of it",
                    "To join two streams use .union(...).",
                )
            routing = graph.inputs(target)[0].routing
            graph.edges.append(Edge(sender, target, routing, output, feedback=True))
        for node in graph.nodes.values():
            node.schemas.clear()  # what comes back may have other columns
        return self

    def side_output(self, name: str) -> Stream:
        """The stream of records that an operator emits with ctx.emit(record, output=name).

        >>> class Check(es.Operator):
        ...     def process(self, record, ctx):
        ...         ctx.emit(record, output="out" if record >= 0 else "negative")
        >>> checked = es.Pipeline("checked").source(es.FromList([1, -2, 3])).process(Check())
        >>> _ = checked.collect(name="fine")
        >>> result = checked.side_output("negative").collect(name="negative").run()
        >>> result.collected("fine"), result.collected("negative")
        ([1, 3], [-2])
        """
        if name == LATE and self._late_origins:
            return self._leaving(self._late_origins)
        return self._leaving([(sender, name) for sender, _ in self._origins])

    def sink(
        self,
        sink: Sink,
        *,
        name: str | None = None,
        shards: int | None = None,
        ordered: bool = False,
        on_error: OnError = "fail",
    ) -> Pipeline:
        """End the stream in a sink.

        ordered: write in the order in which the source read the records. Default: False.
        on_error: what to do with a record that the sink cannot store exactly, such as 4000.5 in a
            column of integers: "fail" (the default) ends the run, "skip" counts the record and
            continues, "dead_letter" also keeps it in the store.

        >>> numbers = es.Pipeline("to-files").source(es.Range(3))
        >>> result = numbers.sink(es.JsonLines("numbers/")).run()
        >>> result.records_out
        3
        """
        if not isinstance(sink, Sink):
            raise UserError(f"sink() takes a Sink such as es.JsonLines(...), not {sink!r}.")
        sink = sink.as_sink()
        if ordered:
            shards = 1 if shards is None else shards
        options = Options(name, shards, on_error)
        self._attach(base_name(sink), Kind.SINK, sink, options, ordered)
        return self.pipeline

    def collect(self, *, name: str = "collect", ordered: bool = False) -> Pipeline:
        """End the stream in the result of the run: `pipeline.run().collected(name)`.

        >>> pipeline = es.Pipeline("three").source(es.Range(3)).collect(name="numbers")
        >>> pipeline.run().collected("numbers")
        [0, 1, 2]
        """
        from everstream.connectors.collect import Collect

        return self.sink(Collect(), name=name, ordered=ordered)
