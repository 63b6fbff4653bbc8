"""How many records per second three plain queries take, from generator to exactly-once sink.

Two workers on two cores, aligned checkpoints every second. A rate is records read divided by the
time on the run's own clocks, from the moment the shards may read until the last output is
committed; Spark's start is not in it, and a first short run has loaded compiled code. Every run's
output is compared with what a plain loop over the same generator gives: a wrong one counts not
as slow but as a failure. Machines are shared and noise only ever makes a run slower, so the best
of some rounds counts; the median is given beside it, and so is the best of engine "microbatch".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, get_args

import polars as pl

import everstream as es
from everstream.engine.result import RunResult
from everstream.engine.run import run
from everstream.errors import RunFailed
from everstream.pipeline.checkpointing import Coordinated, EngineName
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.report import Figure, Progress, Report, at_least
from everstream_lab.bench.workloads.inputs import Inputs
from everstream_lab.bench.workloads.nexmark import PER_ROUND, ROUND, Nexmark
from everstream_lab.bench.workloads.queries import selection
from everstream_lab.bench.workloads.steady_bids import SteadyBids
from everstream_lab.bench.workloads.words import Words

CHUNK = 1 << 22
SECOND_US = 1_000_000


@dataclass
class Load(ABC):
    """One query with its input, its truth, and what others reach on such a machine."""

    records: int
    name: ClassVar[str]
    target_per_s: ClassVar[float]
    best_peer: ClassVar[tuple[str, float]]
    python_peer_per_s: ClassVar[float]
    """PyFlink's Python DataStream."""

    @abstractmethod
    def pipeline(self) -> Pipeline:
        """The query, from its generator to a collecting sink."""

    @abstractmethod
    def check(self, result: RunResult) -> None:
        """Raise RunFailed if the output is not what it must be."""

    def smaller(self, records: int) -> "Load":
        return replace(self, records=records)

    def _chunks(self, make: Callable[[int, int], pl.DataFrame]) -> Iterator[pl.DataFrame]:
        for start in range(0, self.records, CHUNK):
            yield make(start, min(start + CHUNK, self.records))


@dataclass
class Selection(Load):
    """NEXMark's query 2; with divisor 2 in FERDiS's variant, which keeps about every second."""

    divisor: int = 123
    name: ClassVar[str] = "nexmark_2"
    target_per_s: ClassVar[float] = 15e6
    best_peer: ClassVar[tuple[str, float]] = ("PyFlink SQL", 5.3e6)
    python_peer_per_s: ClassVar[float] = 0.08e6

    def __post_init__(self) -> None:
        # Whole rounds of NEXMark, of which only the bids are made.
        self.records = max(self.records // PER_ROUND["bids"], 1) * PER_ROUND["bids"]

    @property
    def nexmark(self) -> Nexmark:
        return Nexmark(events=self.records // PER_ROUND["bids"] * ROUND)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("throughput-nexmark-2")
        selection(Inputs(pipeline, self.nexmark), self.divisor).collect()
        return pipeline

    def check(self, result: RunResult) -> None:
        output = result.to_polars()
        actual = (output.height, output["price"].sum(), output["auction"].sum())
        _compare(self.name, actual, self._truth)

    @cached_property
    def _truth(self) -> tuple[int, ...]:
        rows = prices = auctions = 0
        for bids in self._chunks(self.nexmark.bids):
            kept = bids.filter(pl.col("auction") % self.divisor == 0)
            rows += kept.height
            prices += int(kept["price"].sum())
            auctions += int(kept["auction"].sum())
        return rows, prices, auctions


@dataclass
class WordCount(Load):
    """Every word goes out again with how often it has come so far."""

    name: ClassVar[str] = "word_count"
    target_per_s: ClassVar[float] = 3e6
    best_peer: ClassVar[tuple[str, float]] = ("Pathway, Bytewax", 0.65e6)
    python_peer_per_s: ClassVar[float] = 0.015e6

    @property
    def words(self) -> Words:
        return Words(total=self.records, vocabulary=10_000, timed=False)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("throughput-word-count")
        words = pipeline.source(self.words.source(), name="words", shards=2)
        counts = words.key_by("word").aggregate(
            count=es.count(), emit="record", name="count", shards=2
        )
        counts.collect()
        return pipeline

    def check(self, result: RunResult) -> None:
        frames = [batch for batch in result.batches() if isinstance(batch, pl.DataFrame)]
        _compare(self.name, _running_counts(frames), self._truth)

    @cached_property
    def _truth(self) -> pl.DataFrame:
        """Of each word: every number from 1 to how often it comes, once."""
        counts = [frame.group_by("word").len() for frame in self._chunks(self.words.words)]
        total = pl.concat(counts).group_by("word").agg(pl.col("len").sum().cast(pl.Int64))
        n = pl.col("len")
        squares = pl.Series("squares", [_sum_of_squares(number) for number in total["len"]])
        return total.select("word", squares, rows=n, last=n, sums=n * (n + 1) // 2).sort("word")


def _sum_of_squares(n: int) -> int:
    """1 + 4 + 9 + ... + n², as a 64-bit sum gives it: it wraps around."""
    total = n * (n + 1) * (2 * n + 1) // 6
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)


def _running_counts(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Number, greatest, sum and sum of squares of each word's counts: they leave no room for a
    count that is missing and another that came twice."""
    count = pl.col("count").cast(pl.Int64)
    parts = [
        frame.group_by("word").agg(
            rows=pl.len().cast(pl.Int64),
            last=count.max(),
            sums=count.sum(),
            squares=(count * count).sum(),
        )
        for frame in frames
    ]
    if not parts:
        return pl.DataFrame()
    merged = (
        pl.concat(parts)
        .group_by("word")
        .agg(pl.col("rows").sum(), pl.col("last").max(), pl.col("sums", "squares").sum())
    )
    return merged.select("word", "squares", "rows", "last", "sums").sort("word")


@dataclass
class WindowedCount(Load):
    """Bids per auction and second of event time: 1,000 auctions, 100,000 bids per second of it."""

    name: ClassVar[str] = "windowed_count"
    target_per_s: ClassVar[float] = 8e6
    best_peer: ClassVar[tuple[str, float]] = ("PyFlink SQL", 2.0e6)
    python_peer_per_s: ClassVar[float] = 0.014e6

    @property
    def bids(self) -> SteadyBids:
        return SteadyBids(total=self.records, auctions=1_000, bids_per_s=100_000.0)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("throughput-windowed-count")
        bids = pipeline.source(self.bids.source(), name="bids", shards=2).event_time(
            "time", unit="us"
        )
        windows = bids.key_by("auction").window(es.Tumbling("1s"))
        windows.aggregate(count=es.count(), name="count", shards=2).collect()
        return pipeline

    def check(self, result: RunResult) -> None:
        columns = ["window_end", "auction", "count"]
        actual = result.to_polars().select(pl.col(columns).cast(pl.Int64)).sort(columns)
        _compare(self.name, actual, self._truth)

    @cached_property
    def _truth(self) -> pl.DataFrame:
        end = (pl.col("time") // SECOND_US + 1) * SECOND_US
        parts = [
            frame.group_by("auction", window_end=end).len()
            for frame in self._chunks(self.bids.bids)
        ]
        count = pl.col("len").sum().cast(pl.Int64).alias("count")
        counted = pl.concat(parts).group_by("window_end", "auction").agg(count)
        return counted.select("window_end", "auction", "count").sort("window_end", "auction")


def _compare(name: str, actual: Any, expected: Any) -> None:
    same = actual.equals(expected) if isinstance(expected, pl.DataFrame) else actual == expected
    if not same:
        raise RunFailed(f"{name}: the output is wrong: {actual} where {expected} was expected")


@dataclass
class Rate:
    """What the rounds of one load gave."""

    load: Load
    label: str
    rounds_s: list[float] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    microbatch_s: list[float] = field(default_factory=list)
    """The same in micro-batches, round by round."""

    def figures(self) -> list[Figure]:
        """The best round on both engines, and what others reach on such a machine."""
        per_s, microbatch_per_s = (
            tuple(round(self.load.records / took_s) for took_s in rounds)
            for rounds in (self.rounds_s, self.microbatch_s)
        )
        peer, peer_per_s = self.load.best_peer
        return [
            Figure(
                self.label,
                max(per_s),
                "records/s",
                at_least(self.load.target_per_s),
                repetitions=per_s,
                beside=f"{peer} {peer_per_s / 1e6:g} M, "
                f"PyFlink DataStream {self.load.python_peer_per_s / 1e6:g} M",
            ),
            Figure(
                f"{self.label}, microbatch",
                max(microbatch_per_s),
                "records/s",
                ratio=max(microbatch_per_s) / max(per_s),
                repetitions=microbatch_per_s,
            ),
        ]


def measure_one(
    load: Load, every_s: float, master: str, engine: EngineName = "tasks"
) -> tuple[float, int]:
    """Seconds and checkpoints of one run, whose output was right."""
    result = run(
        load.pipeline(),
        engine=engine,
        checkpoint=Coordinated(every=every_s),
        master=master,
        workers=2 if engine == "tasks" else None,
    )
    load.check(result)
    return result.wall_s, len(result.checkpoints)


def measure(
    *,
    bids: int = 200_000_000,
    words: int = 2_000_000,
    long_words: int = 20_000_000,
    windowed_bids: int = 60_000_000,
    every_s: float = 1.0,
    rounds: int = 3,
    master: str = "local[2]",
    progress: Progress = lambda text: None,
) -> Report:
    """Run everything in turn, several rounds.

    The word count is asked for with two million words, which is over in less than a checkpoint
    interval; `word_count_long` is the same with enough words for several checkpoints.
    """
    rates = [
        Rate(Selection(bids), "nexmark_2"),
        Rate(Selection(bids // 2, divisor=2), "nexmark_2_half"),
        Rate(WordCount(words), "word_count"),
        Rate(WordCount(long_words), "word_count_long"),
        Rate(WindowedCount(windowed_bids), "windowed_count"),
    ]
    for rate in rates:
        progress(f"warming up: {rate.label}")
        for engine in get_args(EngineName):
            measure_one(rate.load.smaller(200_000), every_s, master, engine)
    for number in range(rounds):
        for rate in rates:
            progress(f"round {number + 1} of {rounds}: {rate.label}")
            took_s, checkpoints = measure_one(rate.load, every_s, master)
            rate.rounds_s.append(took_s)
            rate.checkpoints.append(checkpoints)
            rate.microbatch_s.append(measure_one(rate.load, every_s, master, "microbatch")[0])
    figures = [figure for rate in rates for figure in rate.figures()]
    details = {
        rate.label: {"records": rate.load.records, "checkpoints": rate.checkpoints}
        for rate in rates
    }
    return Report("throughput", figures, {"every_s": every_s}, details)
