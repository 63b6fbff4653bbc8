"""NHop, FERDiS's cyclic query: who can be reached from whom in at most n hops.

Edges stream in, keyed by where they start. `Match` holds the paths that end at its nodes; an edge
x -> c prolongs every known path a ~> x to a ~> c, one hop longer. What is found is a result, and
if it may grow further it also goes back, over the feedback edge and keyed by where it ends, to
the shard that can prolong it. A record that comes back gives no output: one record would become
many, round and round, until every buffer is full.

The answer is approximate, as in the paper: a path is prolonged only by edges that come after it
is known. The paper is silent on who knows what is new: here each shard of `Match` remembers the
shortest path it has told for each pair and tells only shorter ones.
"""

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream_lab.bench.workloads.inputs import DUE
from everstream_lab.bench.workloads.verdict import Verdict

HOPS = 2
_FAR = 255


class Match(Operator):
    """The first mapper: prolongs known paths by the edges that come in.

    Emits start, stop, hops and via, the node before the last. Keyed by `node`: where an edge
    starts, and where a path that comes back ends. `hops` distinguishes paths from edges.
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
        paths: list[tuple[int, ...]] = []
        for start, stop, *due_us in distinct.iter_rows():
            known = self.told.get(stop, None)
            if known is None:
                known = self.told[stop] = {}
            if known.get(start, _FAR) > 1:
                known[start] = 1
                paths.append((start, stop, 1, start, *due_us))
            for origin, hops in (self.ends_here.get(start, None) or {}).items():
                longer = hops + 1
                if longer <= self.hops and origin != stop and longer < known.get(origin, _FAR):
                    known[origin] = longer
                    paths.append((origin, stop, longer, start, *due_us))
        columns = ["start", "stop", "hops", "via", *(name for name in edges.columns if name == DUE)]
        schema = dict.fromkeys(columns, pl.Int64)
        ctx.emit_batch(pl.DataFrame(paths, schema=schema, orient="row"))


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
