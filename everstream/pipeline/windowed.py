"""What `stream.window(...)` gives: the choice of what to compute per window."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregates import Aggregates, TopK
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import ByKey, Edge, Graph, Kind, OnDemand, Routing
from everstream.pipeline.local_parts import LAST, LATE, PANE, LocalParts, keyed_by_columns
from everstream.pipeline.operator import OUT, Operator
from everstream.pipeline.times import TimeOf
from everstream.pipeline.window_aggregates import (
    END,
    PaneAggregates,
    ProcessingTimeAggregates,
    SessionAggregates,
)
from everstream.pipeline.windows import Session, Sliding, Window

if TYPE_CHECKING:
    from everstream.pipeline.stream import Stream


class Windowed:
    """A stream cut into windows, per key or, without a key, as a whole."""

    def __init__(
        self,
        stream: Stream,
        window: Window,
        time: TimeOf | None,
        allowed_us: int,
    ) -> None:
        self._stream = stream
        self._window = window
        self._time = time
        self._allowed_us = allowed_us

    def aggregate(
        self,
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: Any = "fail",
        **aggregates: Any,
    ) -> Stream:
        """One row per key and window when it is over: key, window_start, window_end, aggregates.

        Records that come too late are at `.port("late")` of the stream this returns.
        """
        options = {"name": name or self._free_name(), "shards": shards, "on_error": on_error}
        return self._build(Aggregates(aggregates), options)

    def top_k(self, column: str, k: int, *others: str, **options: Any) -> Stream:
        """One row per key and window with the k greatest of a column, as the list `top`."""
        options.setdefault("name", self._free_name())
        return self._build(Aggregates({"top": TopK(column, k, others)}), options)

    def _build(self, aggregates: Aggregates, options: dict[str, Any]) -> Stream:
        routing = self._stream._routing
        keying = routing.keying if isinstance(routing, ByKey) else None
        local = LocalParts(keying, aggregates, self._window, self._time, self._allowed_us)
        besides = [PANE, LAST, *aggregates.part_names]
        return two_stages(self._stream, local, self._operator(aggregates), besides, options)

    def _operator(self, aggregates: Aggregates) -> Operator:
        window, time = self._window, self._time
        if time is None:
            assert isinstance(window, Sliding)
            return ProcessingTimeAggregates(aggregates, window)
        if isinstance(window, Session):
            return SessionAggregates(aggregates, time.unit, window, self._allowed_us)
        return PaneAggregates(aggregates, time.unit, window, self._allowed_us)

    def _free_name(self) -> str:
        return self._stream.pipeline._free_name("window")


def two_stages(
    stream: Stream,
    local: LocalParts,
    operator: Operator,
    besides: list[str],
    options: dict[str, Any],
) -> Stream:
    """Local parts in the shards where the records are, then what merges them by key."""
    from everstream.pipeline.stream import Stream

    routing: Routing = OnDemand()
    shards = options.get("shards")
    if local.keying is not None:
        routing = ByKey(keyed_by_columns(besides))
    elif shards not in (None, 1):
        raise UserError(
            f"'{options['name']}' has no key, so one shard must see everything: say shards=1, "
            "or put .key_by(...) before it."
        )
    else:
        shards = 1
    plain = Stream(stream.pipeline, stream._origins)
    parts = plain._then(
        "", local, {"name": f"{options['name']}-local", "on_error": options.get("on_error", "fail")}
    )
    merged = Stream(stream.pipeline, parts._origins, routing)
    done = merged._then("", operator, {"name": options["name"], "shards": shards})
    done._late_origins = [(name, LATE) for name, _ in parts._origins]
    return done


class LastInstant(TimeOf):
    """The time of a window's result: the last that belongs to the window."""

    def read(self, batch: Batch, wanted_by: str) -> pl.Series:
        ends = super().read(batch, wanted_by)
        return ends - 1 if ends.dtype.is_integer() else ends - timedelta(microseconds=1)


def time_of(graph: Graph, origins: list[tuple[str, str]]) -> TimeOf | None:
    """Where records on these streams have their time: as the nearest stages upstream say."""
    from everstream.pipeline.event_time import EventTime

    found: list[TimeOf] = []
    for name, port in origins:
        node = graph.nodes[name]
        if isinstance(node.what, EventTime):
            found.append(node.what.time)
        elif isinstance(node.what, ProcessingTimeAggregates):
            return None
        elif isinstance(node.what, PaneAggregates | SessionAggregates) and port == OUT:
            found.append(LastInstant(END, node.what.unit))
        elif node.kind is not Kind.SOURCE:
            above: list[Edge] = [edge for edge in graph.inputs(name) if not edge.feedback]
            further = time_of(graph, [(edge.sender, edge.port) for edge in above])
            if further is None:
                return None
            found.append(further)
        else:
            return None
    alike = {(time.unit, str(time.what)) for time in found}
    return found[0] if len(alike) == 1 else None
