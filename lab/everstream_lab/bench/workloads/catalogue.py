"""All queries by name, with all that a benchmark must know of them.

`QUERIES["nexmark-2-half"].build(inputs)` is the stream to put a sink behind, and after the run
`QUERIES["nexmark-2-half"].judge(inputs, output)` says what is wrong with what came out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.stream import Stream
from everstream_lab.bench.workloads import ferdis, queries, truth
from everstream_lab.bench.workloads.inputs import Inputs
from everstream_lab.bench.workloads.nexmark import Kind
from everstream_lab.bench.workloads.nhop import judge
from everstream_lab.bench.workloads.verdict import Verdict, compare

SECOND_US = 1_000_000
SIZES = ("small", "large")


@dataclass(frozen=True)
class Query:
    """One question, as a pipeline and in SQL."""

    name: str
    title: str
    build: Callable[[Inputs], Stream]
    sql: Callable[[Inputs], str] | None = None
    """None if the output depends on the order of arrival: then `held_against` says what is wrong."""
    kinds: tuple[Kind, ...] = ()
    """The kinds of NEXMark events it reads; none if it reads words."""
    beat_s: Callable[[Inputs], float] = lambda _: 0.0
    """How far apart in time its output comes; 0 if whenever there is input."""
    target: str = "filter"
    """The operator whose worker is killed to see how the query recovers."""
    held_against: Callable[[Inputs, pl.DataFrame], Verdict] | None = None
    cyclic: bool = False
    """It has a feedback edge: aligned checkpoints refuse it."""

    def expected(self, inputs: Inputs) -> pl.DataFrame:
        """What must come out, whatever fails."""
        if self.sql is None:
            raise UserError(f"the output of {self.name} is not determined; use judge().")
        if not self.kinds:
            return truth.ask(self.sql(inputs), {"words": inputs.words.all()})
        return truth.ask(self.sql(inputs), {kind: inputs.nexmark.all(kind) for kind in self.kinds})

    def judge(self, inputs: Inputs, output: pl.DataFrame) -> Verdict:
        if self.held_against is not None:
            return self.held_against(inputs, output)
        return compare(output, self.expected(inputs))


def _us(inputs: Inputs, duration_s: float) -> int:
    """A time of FERDiS's on this scale."""
    return round(duration_s / inputs.factor * SECOND_US)


def _period(sql: Callable[..., str], *seconds: int) -> Callable[[Inputs], str]:
    return lambda _: sql(*(number * SECOND_US for number in seconds))


def _nexmark() -> list[Query]:
    q = queries
    period_s = q.PERIOD_S
    winning: tuple[Kind, ...] = ("auctions", "bids")
    return [
        Query(
            "nexmark-1",
            "currency conversion",
            q.currency,
            lambda _: truth.Q1,
            ("bids",),
            target="euros",
        ),
        Query("nexmark-2", "selection", q.selection, lambda _: truth.Q2, ("bids",)),
        Query(
            "nexmark-3",
            "local items",
            q.local_items,
            lambda _: truth.Q3,
            ("persons", "auctions"),
            target="join",
        ),
        Query(
            "nexmark-4",
            "average price per category",
            q.category_average,
            lambda _: truth.Q4,
            winning,
            target="winning",
        ),
        Query(
            "nexmark-5",
            "hot items",
            q.hot_items,
            _period(truth.hot_items, period_s, q.HOT_EVERY_S),
            ("bids",),
            lambda _: float(q.HOT_EVERY_S),
            target="counts",
        ),
        Query(
            "nexmark-6",
            "average price per seller",
            q.seller_average,
            lambda _: truth.Q6,
            winning,
            target="winning",
        ),
        Query(
            "nexmark-7",
            "highest bids",
            q.highest_bids,
            _period(truth.highest_bids, period_s),
            ("bids",),
            lambda _: float(period_s),
            target="highest",
        ),
        Query(
            "nexmark-8",
            "new users",
            q.new_users,
            _period(truth.new_users, period_s),
            ("persons", "auctions"),
            lambda _: float(period_s),
            target="join",
        ),
        Query(
            "nexmark-2-half",
            "selection of half, FERDiS",
            ferdis.selection_of_half,
            lambda _: truth.FERDIS_2,
            ("bids",),
        ),
        Query(
            "nhop",
            "paths of at most two hops, FERDiS",
            ferdis.n_hop,
            target="match",
            held_against=lambda inputs, output: judge(inputs.edges.all(), output),
            cyclic=True,
        ),
    ]


def _of_size(size: str) -> list[Query]:
    """FERDiS's queries with windows of one size."""
    f = ferdis

    def every(duration_s: float) -> Callable[[Inputs], float]:
        return lambda inputs: duration_s / inputs.factor

    def joined(inputs: Inputs) -> tuple[int, int]:
        return _us(inputs, f.JOIN_S[size]), _us(inputs, f.JOIN_EVERY_S)

    def hot(inputs: Inputs) -> tuple[int, int]:
        return _us(inputs, f.HOT_S[size]), _us(inputs, f.HOT_EVERY_S)

    return [
        Query(
            f"nexmark-3-{size}",
            f"local items in {size} windows, FERDiS",
            lambda inputs: f.windowed_local_items(inputs, size),
            lambda inputs: truth.ferdis_3(*joined(inputs)),
            ("persons", "auctions"),
            every(f.JOIN_EVERY_S),
            target="join",
        ),
        Query(
            f"nexmark-5-{size}",
            f"rising items in {size} windows, FERDiS",
            lambda inputs: f.rising_items(inputs, size),
            lambda inputs: truth.ferdis_5(*hot(inputs)),
            ("bids",),
            every(f.HOT_EVERY_S),
            target="counts",
        ),
        Query(
            f"nexmark-6-{size}",
            f"average price per seller in {size} windows, FERDiS",
            lambda inputs: f.windowed_seller_average(inputs, size),
            lambda inputs: truth.ferdis_6(*joined(inputs), _us(inputs, f.PRICE_S[size])),
            ("auctions", "bids"),
            every(f.PRICE_S[size]),
            target="join",
        ),
        Query(
            f"wordcount-{size}",
            f"incremental WordCount in {size} windows, FERDiS",
            lambda inputs: f.incremental_word_count(inputs, size),
            lambda inputs: truth.incremental_word_count(_us(inputs, f.WORDS_S[size])),
            (),
            every(f.WORDS_S[size]),
            target="counts",
        ),
    ]


QUERIES: dict[str, Query] = {
    query.name: query for query in [*_nexmark(), *(q for size in SIZES for q in _of_size(size))]
}
