"""The fluent interface a user writes pipelines with: `Pipeline` and `Stream`."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from everstream.errors import GraphError, UserError
from everstream.pipeline.autoscale import AutoScale
from everstream.pipeline.checkpointing import Checkpointing, Coordinated, Engine
from everstream.pipeline.flow_methods import FlowMethods
from everstream.pipeline.graph import ByKey, Edge, Graph, Kind, Node
from everstream.pipeline.keys import KEY_GROUPS, Keying
from everstream.pipeline.names import base_name, is_usable
from everstream.pipeline.operator import OUT, Operator, StateKind
from everstream.pipeline.record_methods import RecordMethods
from everstream.pipeline.rejects import OnError
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source
from everstream.pipeline.time_methods import TimeMethods
from everstream.pipeline.types import T, U

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from everstream.monitoring.monitor import Monitor
    from everstream.spark.handle import RunHandle
    from everstream.spark.kills import Kill
    from everstream.spark.listener import Listener, Snapshot
    from everstream.spark.result import RunResult

_COORDINATED = Coordinated()
_NEED_A_KEY = ("fold", "reduce", "aggregate", "aggregates")


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

    def source(self, source: Source[U], *, name: str | None = None, shards: int = 1) -> Stream[U]:
        """Add a source; its records flow out of the stream this returns.

        >>> numbers = es.Pipeline("numbers").source(es.Range(3), shards=2)
        >>> sorted(numbers.collect().run().collected())
        [0, 1, 2]
        """
        if not isinstance(source, Source):
            raise UserError(f"source() takes a Source such as es.TextLines(...), not {source!r}.")
        node = self._add(name, base_name(source), Kind.SOURCE, source, shards, source.on_error)
        return Stream(self, [(node.name, OUT)])

    def run(
        self,
        *,
        engine: Engine = "tasks",
        checkpoint: Checkpointing | None = _COORDINATED,
        store: str | os.PathLike[str] | None = None,
        fresh: bool = False,
        renamed: Mapping[str, str] | None = None,
        drop_state: Collection[str] = (),
        take_over: bool = False,
        start_from: str | None = None,
        master: str = "local[*]",
        spark: SparkSession | None = None,
        workers: int | None = None,
        spares: int = 0,
        autoscale: AutoScale | None = None,
        max_shards: int | None = None,
        standby: bool | str | float = False,
        max_restarts: int = 3,
        restart_window: str | float = "10m",
        timeout: str | float | None = None,
        until: Callable[[Snapshot], bool] | None = None,
        kill: Sequence[str | Kill] = (),
        listener: Listener | None = None,
        progress: bool | None = None,
        heartbeat_timeout: str | float = "10s",
        pack_after: str | float = "30s",
        slow_after: str | float = "10s",
        checkpoint_timeout: str | float = "10m",
        transport: str = "auto",
        store_key: str | os.PathLike[str] | None = None,
        monitor: Monitor | str | None = None,
        history: bool = True,
        ui: bool | str = False,
        state: StateKind | None = None,
        host_memory: str | int | None = None,
    ) -> RunResult:
        """Run on Spark until the sources end or somebody stops it; `start` does not wait for that.

        engine: "tasks" keeps Spark tasks running that send each other records; with "microbatch"
            each epoch is one Spark job, and Spark carries the records (docs/engines.md).
        checkpoint: es.Coordinated(every="5s"), es.Uncoordinated(...), es.Induced(...), or None to
            run without.
        store: folder or fsspec URL for the checkpoints. A later run with the same store goes on
            from the last one. Without a store a temporary folder is used and nothing is kept.
        fresh: delete earlier checkpoints and output, start from nothing.
        take_over: run on this store even if another run is using it, which then ends.
        start_from: "STORE@NAME", a savepoint that a run in a store without checkpoints begins with.
        renamed: operators that have another name than in the checkpoint, {"old": "new"}; an
            operator given to itself goes on with its state though it has changed.
        drop_state: operators that begin with nothing while the others go on from the checkpoint.
        master, spark: a Spark master, or a session you already have.
        workers: how many hosts (Spark tasks) to spread the shards over; default: all slots.
        spares: so many further Spark tasks stand by, with everything loaded but the state; one
            takes the place of a host that dies at once.
        autoscale: an es.AutoScale: the run changes numbers of shards by itself.
        max_shards: the most shards an operator behind key_by can ever have in this store: into so
            many groups keys are spread; default 128.
        standby: wait until whoever runs on this store ends badly or falls silent, and take over;
            "2s" says how long a silence that is.
        max_restarts: how many failures within restart_window are too many.
        timeout: stop with a checkpoint after so long; without one, and saying so, if it cannot be had.
        until: stop with a checkpoint when this function of the run's es.Snapshot says so.
        kill: kill hosts on purpose, "OPERATOR[:SHARD]@5s", "@10000" records or "@after-prepare"
            (see es.Kill); "driver@..." kills this process.
        listener: an es.Listener that is told how the run goes.
        progress: show on standard error how the run goes; default: unless there is a listener, or
            EVERSTREAM_PROGRESS is 0.
        heartbeat_timeout: a host that is silent for so long is taken for dead.
        pack_after: a host that does not come back for so long leaves its shards to the others, until
            there is room again.
        slow_after: say so when a checkpoint, a restore or the store takes longer than this.
        checkpoint_timeout: give up a checkpoint that is not complete after so long, and start the next.
            The last one of a run is waited for three times as long; then the run fails.
        transport: "auto" (unix sockets on one machine, encrypted TCP between machines) or "tcp".
        store_key: the file with the key that signs the store; default: the one that
            EVERSTREAM_STORE_KEY_FILE names, or none.
        monitor: an es.Monitor, or how often one is to sample, "100ms"; see `result.monitored`.
        history: keep in the store what happened, at most 16 MB of it, for `everstream ui`.
        ui: serve a page of this run while it goes on, True: on loopback, or "HOST:PORT". Its link is
            printed on standard error, with the token that actions need (docs/monitoring.md).
        state: "disk" keeps the state of operators that have not said otherwise on the local disk,
            where it may be larger than memory (docs/state.md).
        host_memory: what the process of a host may have, "2g". Near it the host takes nothing in until
            it has less; at it the run fails and says whose state it is.

        >>> pipeline = es.Pipeline("ten").source(es.Range(10)).collect()
        >>> result = pipeline.run(checkpoint=es.Coordinated(every="5s"), store="checkpoints/")
        >>> result.records_in, result.records_out
        (10, 10)
        """
        from everstream.spark.run import run

        return run(
            self,
            engine=engine,
            checkpoint=checkpoint,
            store=store,
            fresh=fresh,
            renamed=renamed,
            drop_state=drop_state,
            take_over=take_over,
            start_from=start_from,
            master=master,
            spark=spark,
            workers=workers,
            spares=spares,
            autoscale=autoscale,
            max_shards=max_shards,
            standby=standby,
            max_restarts=max_restarts,
            restart_window=restart_window,
            timeout=timeout,
            until=until,
            kill=kill,
            listener=listener,
            progress=progress,
            heartbeat_timeout=heartbeat_timeout,
            pack_after=pack_after,
            slow_after=slow_after,
            checkpoint_timeout=checkpoint_timeout,
            transport=transport,
            store_key=store_key,
            monitor=monitor,
            history=history,
            ui=ui,
            state=state,
            host_memory=host_memory,
        )

    def start(
        self,
        *,
        engine: Engine = "tasks",
        checkpoint: Checkpointing | None = _COORDINATED,
        store: str | os.PathLike[str] | None = None,
        fresh: bool = False,
        renamed: Mapping[str, str] | None = None,
        drop_state: Collection[str] = (),
        take_over: bool = False,
        start_from: str | None = None,
        master: str = "local[*]",
        spark: SparkSession | None = None,
        workers: int | None = None,
        spares: int = 0,
        autoscale: AutoScale | None = None,
        max_shards: int | None = None,
        standby: bool | str | float = False,
        max_restarts: int = 3,
        restart_window: str | float = "10m",
        timeout: str | float | None = None,
        until: Callable[[Snapshot], bool] | None = None,
        kill: Sequence[str | Kill] = (),
        listener: Listener | None = None,
        progress: bool | None = None,
        heartbeat_timeout: str | float = "10s",
        pack_after: str | float = "30s",
        slow_after: str | float = "10s",
        checkpoint_timeout: str | float = "10m",
        transport: str = "auto",
        store_key: str | os.PathLike[str] | None = None,
        monitor: Monitor | str | None = None,
        history: bool = True,
        ui: bool | str = False,
        state: StateKind | None = None,
        host_memory: str | int | None = None,
    ) -> RunHandle:
        """Run on Spark in the background: the handle of the run, at once.

        Its keywords are those of `run`, which is this and then `wait()`. Several pipelines may run
        at once in a program, each on slots of its own: `workers` says how many it takes.

        >>> pipeline = es.Pipeline("ten").source(es.Range(10)).collect()
        >>> run = pipeline.start(checkpoint=es.Coordinated(every="5s"), store="checkpoints/")
        >>> run.wait().records_out
        10
        """
        from everstream.spark.run import start

        return start(
            self,
            engine=engine,
            checkpoint=checkpoint,
            store=store,
            fresh=fresh,
            renamed=renamed,
            drop_state=drop_state,
            take_over=take_over,
            start_from=start_from,
            master=master,
            spark=spark,
            workers=workers,
            spares=spares,
            autoscale=autoscale,
            max_shards=max_shards,
            standby=standby,
            max_restarts=max_restarts,
            restart_window=restart_window,
            timeout=timeout,
            until=until,
            kill=kill,
            listener=listener,
            progress=progress,
            heartbeat_timeout=heartbeat_timeout,
            pack_after=pack_after,
            slow_after=slow_after,
            checkpoint_timeout=checkpoint_timeout,
            transport=transport,
            store_key=store_key,
            monitor=monitor,
            history=history,
            ui=ui,
            state=state,
            host_memory=host_memory,
        )

    def with_nodes(self, nodes: Mapping[str, Node]) -> Self:
        """A copy with these nodes in place of those of the same name; the original stays as it is."""
        twin = copy.copy(self)
        twin.graph = Graph(self.name, {**self.graph.nodes, **nodes}, list(self.graph.edges))
        return twin

    def ended(self, result: RunResult) -> None:
        """A run has come to this; for pipelines that make something of it."""

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
            raise GraphError(name, f"shards={shards!r} makes no sense", "Give a number from 1 up.")
        node = Node(name, kind, what, shards, ordered, on_error, named=named)
        if node.on_error == "dead_letter":
            from everstream.connectors.dead_letters import DeadLetters

            node.dead_letters = DeadLetters()
        self.graph.nodes[name] = node
        return node

    def _free_name(self, base: str) -> str:
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        return next(n for n in itertools.chain([base], numbered) if n not in self.graph.nodes)


class Stream(RecordMethods[T], FlowMethods[T], TimeMethods[T]):
    """Records of type T on their way from one operator (or, after `union`, several) to the next.

    Each method adds an operator and returns the stream that leaves it. Every one of them takes
    `name=` (operators keep their state under it), `shards=` (default: as many as upstream) and
    `on_error=`: what to do with a record that the operator raises on. "fail" (the default) ends
    the run, "skip" counts the record and goes on, "dead_letter" also keeps it in the store.

    What keeps a value per key (`fold`, `reduce`, `aggregate`) is at the `KeyedStream` that
    `key_by` gives, and what is computed per window at the `WindowedStream` that `window` gives.

    >>> numbers = es.Pipeline("odd-squares").source(es.Range(6))
    >>> odd = numbers.filter(lambda n: n % 2 == 1, name="odd")
    >>> odd.map(lambda n: n * n, name="squares", shards=1).collect().run().collected()
    [1, 9, 25]
    """

    if not TYPE_CHECKING:  # a type checker finds no such method, and says so by itself

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
    """A method was asked for that only a keyed stream has."""


def planned_shards(
    graph: Graph, shards: Mapping[str, int] | None = None, key_groups: int | None = KEY_GROUPS
) -> Graph:
    """A copy of the graph in which every operator has its number of shards.

    shards: for these operators another one than their stream says. key_groups: see `Keying`.
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
    """The edges with keys in so many groups; edges of one `key_by` still share it."""
    routings = {
        id(edge.routing): ByKey(Keying(edge.routing.keying.selector, key_groups))
        for edge in edges
        if isinstance(edge.routing, ByKey)
    }
    return [replace(edge, routing=routings.get(id(edge.routing), edge.routing)) for edge in edges]
