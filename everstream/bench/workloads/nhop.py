"""NHop, FERDiS's cyclic query: who can be reached from whom in at most n hops.

Edges stream in, keyed by where they start. `Match` holds the paths that end at its nodes; an edge
x -> c prolongs every known path a ~> x to a ~> c, one hop longer. What is found is a result, and
if it may grow further it also goes back, over the feedback edge and keyed by where it ends, to
the shard that can prolong it. What comes back gives no output of its own: one record would become
many, round and round, until every buffer is full.

The answer is approximate, as in the paper: a path is prolonged only by edges that come after it
is known. The paper is silent on who knows what is new: here each shard of `Match` remembers the
shortest path it has told for each pair and tells only shorter ones.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from everstream.bench.workloads.inputs import DUE
from everstream.bench.workloads.randomness import below, bits_of
from everstream.bench.workloads.verdict import Verdict
from everstream.connectors.generate import FromFunction
from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.operator import Context, Keyed, Operator

HOPS = 2
_SALT, _GRAPH_SALT = 21, 22
_FAR = 255


@dataclass(frozen=True)
class Edges:
    """A stream of `total` edges, endless if None, drawn again and again from one random graph.

    The graph has `nodes` nodes with `degree` edges leaving each, some of them perhaps the same.
    Sooner or later all of its paths are known. With `fresh`, so many new nodes come with each
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


class Match(Operator):
    """The first mapper: prolongs known paths by the edges that come in.

    Emits start, stop, hops and via, the node before the last. Keyed by `node`: where an edge
    starts, and where a path that comes back ends. Paths are told from edges by their `hops`.
    """

    ends_here = Keyed[dict[int, int]]()
    """Node -> where paths to it start -> how many hops they have."""
    told = Keyed[dict[int, int]]()
    """Where a path ends -> where it starts -> the fewest hops told so far."""

    def __init__(self, hops: int = HOPS) -> None:
        if hops < 1:
            raise UserError(f"hops={hops} must be at least 1.")
        self.hops = hops

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        if "hops" in frame.columns:
            self._remember(frame)
        else:
            self._match(frame, ctx)

    def _remember(self, paths: pl.DataFrame) -> None:
        for start, stop, hops in paths.select("start", "stop", "hops").iter_rows():
            known = self.ends_here.get(stop, None)
            if known is None:
                known = self.ends_here[stop] = {}
            if hops < known.get(start, _FAR):
                known[start] = hops

    def _match(self, edges: pl.DataFrame, ctx: Context) -> None:
        # The same edge twice in one batch can find nothing more the second time: nothing came
        # back in between.
        due = [pl.col(DUE).max()] if DUE in edges.columns else []
        distinct = edges.group_by("start", "stop", maintain_order=True).agg(due)
        found: list[tuple[int, ...]] = []
        for start, stop, *due_us in distinct.iter_rows():
            told = self.told.get(stop, None)
            if told is None:
                told = self.told[stop] = {}
            if told.get(start, _FAR) > 1:
                told[start] = 1
                found.append((start, stop, 1, start, *due_us))
            for origin, hops in (self.ends_here.get(start, None) or {}).items():
                longer = hops + 1
                if longer <= self.hops and origin != stop and longer < told.get(origin, _FAR):
                    told[origin] = longer
                    found.append((origin, stop, longer, start, *due_us))
        columns = ["start", "stop", "hops", "via", *(name for name in edges.columns if name == DUE)]
        schema = dict.fromkeys(columns, pl.Int64)
        ctx.emit_batch(pl.DataFrame(found, schema=schema, orient="row"))


def judge(edges: pl.DataFrame, output: pl.DataFrame) -> Verdict:
    """Hold the output for two hops against the graph: what must be there, once, and what may be.

    Every distinct edge must come out once. Which longer paths are found depends on the order of
    arrival, but each must be one of the graph's.
    """
    distinct = edges.select("start", "stop").unique()
    two = distinct.rename({"stop": "via"}).join(distinct.rename({"start": "via"}), on="via")
    possible = pl.concat(
        [
            distinct.select("start", "stop", hops=pl.lit(1, pl.Int64), via="start"),
            two.filter(pl.col("start") != pl.col("stop")).select(
                "start", "stop", pl.lit(2, pl.Int64).alias("hops"), "via"
            ),
        ]
    )
    rows = output.select(possible.columns)
    shown = rows.unique()
    single = shown.filter(pl.col("hops") == 1)
    return Verdict(
        lost=distinct.join(single, on=["start", "stop"], how="anti").height,
        duplicated=rows.height - shown.height,
        untrue=shown.join(possible, on=rows.columns, how="anti").height,
    )
