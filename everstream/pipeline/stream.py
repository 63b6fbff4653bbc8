"""The fluent interface a user writes pipelines with: `Pipeline` and `Stream`."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from everstream.errors import GraphError, UserError
from everstream.pipeline.graph import ByKey, Edge, Graph, Kind, Node, base_name, is_usable
from everstream.pipeline.keys import KEY_GROUPS, Keying
from everstream.pipeline.methods.flow import FlowMethods
from everstream.pipeline.methods.joins import JoinMethods
from everstream.pipeline.methods.records import RecordMethods
from everstream.pipeline.operator import OUT, Operator
from everstream.pipeline.operators.models import row_type
from everstream.pipeline.options import RunOptions, RunOptionsDict
from everstream.pipeline.rejects import OnError
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source
from everstream.pipeline.types import Row, T, U

if TYPE_CHECKING:
    from everstream.engine.handle import RunHandle
    from everstream.engine.result import RunResult

_NEED_A_KEY = ("fold", "reduce", "aggregate")


class Pipeline:
    """A graph of operators with a name; `run` executes it on Spark.

    >>> pipeline = es.Pipeline("hello")
    >>> pipeline.source(es.FromList(["hello", "world"])).map(str.upper).collect().run().collected()
    ['HELLO', 'WORLD']
    """

    def __init__(self, name: str) -> None:
        if not is_usable(name):
            raise UserError(
                f"pipeline name {name!r}: use letters, digits, '-', '_' and '.', because the "
                "name becomes part of file names."
            )
        self.name = name
        self.graph = Graph(name)

    @overload
    def source(
        self, source: Source[U], *, name: str | None = None, shards: int = 1, schema: None = None
    ) -> Stream[U]: ...
    @overload
    def source(
        self,
        source: Source[Any],
        *,
        name: str | None = None,
        shards: int = 1,
        schema: Mapping[str, Any],
    ) -> Stream[Row]: ...
    @overload
    def source(
        self, source: Source[Any], *, name: str | None = None, shards: int = 1, schema: type[U]
    ) -> Stream[U]: ...
    def source(
        self, source: Source[Any], *, name: str | None = None, shards: int = 1, schema: Any = None
    ) -> Stream[Any]:
        """Add a source, and return the stream of its records.

        schema: the columns of its records: Polars types by name, a dataclass, a pydantic model or a
        msgspec Struct. Records that do not fit go where the `on_error` of the source sends them. With a
        class, functions get instances of it.

        >>> numbers = es.Pipeline("numbers").source(es.Range(3), shards=2)
        >>> sorted(numbers.collect().run().collected())
        [0, 1, 2]
        """
        if not isinstance(source, Source):
            raise UserError(f"source() takes a Source such as es.TextLines(...), not {source!r}.")
        source = source.as_source()
        base = base_name(source)
        if schema is not None:
            from everstream.connectors.declared import Declared

            source = Declared(source, row_type(schema))
        node = self._add(name, base, Kind.SOURCE, source, shards, source.on_error)
        return Stream(self, [(node.name, OUT)])

    def run(
        self, options: RunOptions | None = None, **overrides: Unpack[RunOptionsDict]
    ) -> RunResult:
        """Run on Spark until the sources end or the run is stopped; `start` returns at once instead.

        Give options as keywords (`workers=4`), as an `es.RunOptions`, or both: keywords win. Options
        you do not give come from the environment (`EVERSTREAM_WORKERS`), from `everstream.toml` or
        `[tool.everstream]` in pyproject.toml, or have their default. docs/reference/configuration.md lists them all.

        >>> pipeline = es.Pipeline("ten").source(es.Range(10)).collect()
        >>> result = pipeline.run(checkpoint=es.Coordinated(every="5s"), store="checkpoints/")
        >>> result.records_in, result.records_out
        (10, 10)
        """
        from everstream.engine.run import run

        return run(self, options, **overrides)

    def start(
        self, options: RunOptions | None = None, **overrides: Unpack[RunOptionsDict]
    ) -> RunHandle:
        """Start a run on Spark in the background, and return its handle at once.

        Takes the options of `run`, which is `start` followed by `wait()`. Several pipelines can run at
        once in a program, each on its own slots: `workers` sets how many it takes.

        >>> pipeline = es.Pipeline("ten").source(es.Range(10)).collect()
        >>> run = pipeline.start(checkpoint=es.Coordinated(every="5s"), store="checkpoints/")
        >>> run.wait().records_out
        10
        """
        from everstream.engine.run import start

        return start(self, options, **overrides)

    def explain(self, form: Literal["text", "mermaid", "svg"] = "text") -> str:
        """What will run: operators, columns where they are known, shards, how records travel, state.

        As text, as a Mermaid flowchart for documents, or as an SVG drawing. Checks the pipeline as
        `run` does, and starts nothing.

        >>> pipeline = es.Pipeline("squares")
        >>> numbers = pipeline.source(es.Range(9, column="n"), name="numbers", shards=2)
        >>> _ = numbers.with_columns(square=pl.col("n") ** 2, name="square").collect(name="out")
        >>> print(pipeline.explain())
        Pipeline 'squares': 3 operators in 1 chain, 2 shards
        <BLANKLINE>
        numbers (source Range, 2 shards, chain 1)
            columns: n Int64
            checkpoint: how far each shard has read
        <BLANKLINE>
        square (operator WithColumns, 2 shards, chain 1)
            from numbers: same process, no copy
            columns: n Int64, square Int64
        <BLANKLINE>
        out (sink Collect, 2 shards, chain 1)
            from square: same process, no copy
            delivery: exactly-once
            checkpoint: output to commit
        <BLANKLINE>
        """
        from everstream.inspection.explain import explain

        return explain(self, form)

    def with_nodes(self, nodes: Mapping[str, Node]) -> Self:
        """A copy with these nodes in place of those with the same names; the original is unchanged."""
        twin = copy.copy(self)
        twin.graph = Graph(self.name, {**self.graph.nodes, **nodes}, list(self.graph.edges))
        return twin

    def ended(self, result: RunResult) -> None:
        """Called when a run has ended, for pipelines that use its result."""

    def _add(
        self,
        name: str | None,
        base: str,
        kind: Kind,
        what: Source | Operator | Sink,
        shards: int | None,
        on_error: OnError,
        ordered: bool = False,
    ) -> Node:
        named = name is not None
        if name is None:
            name = self._free_name(base)
        if not is_usable(name):
            raise GraphError(name, "is not a usable name", "Use letters, digits, '-', '_', '.'.")
        if name in self.graph.nodes:
            raise GraphError(
                name,
                "this name is used twice",
                "State is found by the operator's name: give each its own with name=...",
            )
        if shards is not None and (not isinstance(shards, int) or shards < 1):
            raise GraphError(name, f"shards={shards!r} is not valid", "Give a number from 1 up.")
        node = Node(name, kind, what, shards, ordered, on_error, named=named)
        if node.on_error == "dead_letter":
            from everstream.connectors.dead_letters import DeadLetters

            node.dead_letters = DeadLetters()
        self.graph.nodes[name] = node
        return node

    def _free_name(self, base: str) -> str:
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        return next(n for n in itertools.chain([base], numbered) if n not in self.graph.nodes)


class Stream(RecordMethods[T], FlowMethods[T], JoinMethods[T]):
    """Records of type T on their way from one operator (or, after `union`, several) to the next.

    Each method adds an operator and returns the stream that leaves it. Every one of them takes
    `name=` (operators keep their state under it), `shards=` (default: as many as upstream) and
    `on_error=`: what to do with a record that the operator raises on. "fail" (the default) ends
    the run, "skip" counts the record and continues, "dead_letter" also keeps it in the store.

    Methods that keep a value per key (`fold`, `reduce`, `aggregate`) are on the `KeyedStream` that
    `key_by` returns, and those that compute per window on the `WindowedStream` of `window`.

    >>> numbers = es.Pipeline("odd-squares").source(es.Range(6))
    >>> odd = numbers.filter(lambda n: n % 2 == 1, name="odd")
    >>> odd.map(lambda n: n * n, name="squares", shards=1).collect().run().collected()
    [1, 9, 25]
    """

    if not TYPE_CHECKING:  # a type checker reports the missing method without this

        def __getattr__(self, name: str) -> Any:
            if name not in _NEED_A_KEY:
                raise AttributeError(f"a {type(self).__name__} has no {name!r}")
            before = ", ".join(sender for sender, _ in self._origins)
            raise NoKey(
                before,
                f"{name}(...) keeps a value per key, but the stream from here has no key",
                f"Put .key_by(...) right before .{name}(...).",
            )


class NoKey(GraphError, AttributeError):
    """A method was called that only a keyed stream has."""


def planned_shards(
    graph: Graph, shards: Mapping[str, int] | None = None, key_groups: int | None = KEY_GROUPS
) -> Graph:
    """A copy of the graph in which every operator has its number of shards.

    shards: overrides the number for these operators. key_groups: see `Keying`.
    """
    wanted = shards or {}
    nodes = {n: replace(node, shards=wanted.get(n, node.shards)) for n, node in graph.nodes.items()}
    planned = Graph(graph.name, nodes, _grouped(graph.edges, key_groups))
    for node in planned.upstream_first():
        if planned.nodes[node.name].shards is None:
            feeding = [planned.nodes[e.sender].shards or 1 for e in planned.inputs(node.name)]
            planned.nodes[node.name].shards = max(feeding, default=1)
    return planned


def _grouped(edges: Sequence[Edge], key_groups: int | None) -> list[Edge]:
    """The edges with this many key groups; edges of one `key_by` still share its `Keying`."""
    routings = {
        id(edge.routing): ByKey(Keying(edge.routing.keying.selector, key_groups))
        for edge in edges
        if isinstance(edge.routing, ByKey)
    }
    return [replace(edge, routing=routings.get(id(edge.routing), edge.routing)) for edge in edges]
