"""The edges of a random graph as a stream, seeded and replayable: what NHop reads."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from everstream.connectors.generate.sources import FromFunction
from everstream.errors import UserError
from everstream_lab.bench.workloads.randomness import below, bits_of

_SALT, _GRAPH_SALT = 21, 22


@dataclass(frozen=True)
class Edges:
    """A stream of `total` edges, endless if None, drawn again and again from one random graph.

    The graph has `nodes` nodes with `degree` edges leaving each, some of them perhaps the same.
    Sooner or later all of its paths are known. With `fresh`, this many new nodes come with each
    edge and as many old ones are seen no more, so that there is always something to find.
    Columns `start`, `stop`.
    """

    total: int | None = None
    seed: int = 0
    nodes: int = 1_000
    degree: int = 5
    fresh: float = 0.0

    def __post_init__(self) -> None:
        if self.nodes < 2 or self.degree < 1:
            raise UserError("a graph needs at least two nodes, and one edge that leaves each.")
        if self.fresh < 0:
            raise UserError(f"fresh={self.fresh} is negative.")

    def source(self, batch: int = 4_096) -> FromFunction:
        return FromFunction(self.edges, total=self.total, batch=batch)

    def all(self) -> pl.DataFrame:
        if self.total is None:
            raise UserError("an endless stream has no end to wait for; give total=.")
        return self.edges(0, self.total)

    def edges(self, start: int, stop: int) -> pl.DataFrame:
        """Edges number start to stop - 1."""
        number = np.arange(start, stop, dtype=np.int64)
        bits = bits_of(self.seed, _SALT, number)
        oldest = (number * self.fresh).astype(np.int64)
        begins = oldest + below(bits, 0, 31, self.nodes)
        which = below(bits, 31, 31, self.degree)
        graph = bits_of(self.seed, _GRAPH_SALT, begins * self.degree + which)
        # Never back to where it starts.
        ends = begins + 1 + below(graph, 0, 31, self.nodes - 1)
        if not self.fresh:
            ends %= self.nodes
        return pl.DataFrame([pl.Series("start", begins), pl.Series("stop", ends)])
