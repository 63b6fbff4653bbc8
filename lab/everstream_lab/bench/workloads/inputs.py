"""Where a query's records come from: at full speed, or at a steady rate with their due times.

A query is a function of an `Inputs`; it asks for the streams it needs and never knows whether
they are paced. When they are, every record carries `due_us`, the moment it was due in
microseconds since 1970, and queries hand it on: a result is as due as the last record in it. So
latency can be measured at the sink from the due time, and waiting counts.
"""

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from everstream.connectors.generate.paced import Paced
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline, Stream
from everstream_lab.bench.workloads.graph_edges import Edges
from everstream_lab.bench.workloads.nexmark import PER_ROUND, ROUND, Kind, Nexmark
from everstream_lab.bench.workloads.words import Words

DUE = "due_us"
FULL_BATCH = 65_536
EDGES_BATCH = 4_096
"""Few, so that paths come back before too many edges have passed that could prolong them."""
PACED_BATCH_S = 0.01
"""A paced shard reads ahead of the others by at most so much event time."""


@dataclass
class Inputs:
    """The streams of one pipeline."""

    pipeline: Pipeline
    nexmark: Nexmark = field(default_factory=Nexmark)
    words: Words = field(default_factory=Words)
    edges: Edges = field(default_factory=Edges)
    shards: int = 2
    rate: float | None = None
    """Records per second, for NEXMark events of all kinds together; None for full speed."""
    batch: int | None = None
    apart: bool = False
    """Keep operators that could be fused with their source apart from it, behind a channel. A
    comparison of protocols needs channels: without one there is nothing to log, hold or replay."""
    factor: float = 1.0
    """The windows of FERDiS's variants are divided by this, for machines smaller than its own."""

    @property
    def due(self) -> list[str]:
        """The column that must be handed on, if records have one."""
        return [] if self.rate is None else [DUE]

    @property
    def later_due(self) -> list[pl.Expr]:
        """The due time of a joined row: that of the later of the two."""
        if self.rate is None:
            return []
        return [pl.max_horizontal(DUE, f"{DUE}_right").alias(DUE)]

    def persons(self, **options: Any) -> Stream:
        return self._of_kind("persons", options)

    def auctions(self, **options: Any) -> Stream:
        return self._of_kind("auctions", options)

    def bids(self, **options: Any) -> Stream:
        return self._of_kind("bids", options)

    def word_stream(self, **options: Any) -> Stream:
        return self._stream("words", self.words.source(self._batch), self.rate, options)

    def cut(self, stream: Stream) -> Stream:
        """The stream with a channel in it, if operators are to be kept apart."""
        return stream.on_demand() if self.apart else stream

    def edge_stream(self, **options: Any) -> Stream:
        source = self.edges.source(min(self._batch, EDGES_BATCH))
        return self._stream("edges", source, self.rate, options)

    def _of_kind(self, kind: Kind, options: dict[str, Any]) -> Stream:
        source = self.nexmark.source(kind, self._batch)
        rate = None if self.rate is None else self.rate * PER_ROUND[kind] / ROUND
        return self._stream(kind, source, rate, options)

    def _stream(
        self, name: str, source: Source, rate: float | None, options: dict[str, Any]
    ) -> Stream:
        if rate is not None:
            source = Paced(source, rate, due=DUE)
        settings: dict[str, Any] = {"name": name, "shards": self.shards} | options
        return self.pipeline.source(source, **settings)

    @property
    def _batch(self) -> int:
        if self.batch is not None:
            return self.batch
        # Shards take blocks in turn, each at its share of the rate: with large blocks one shard
        # would be seconds ahead of the other in event time, and the watermark would wait.
        return FULL_BATCH if self.rate is None else max(ROUND, int(self.rate * PACED_BATCH_S))
