"""What is compared: queries, protocols, intervals and failures, scaled to a small machine.

FERDiS ran on 32 cores for four minutes a run with checkpoints every 10 or 15 seconds. Here every
time of it (interval, window, run) is divided by one factor, and rates are what two cores take
with room to spare, so that waiting shows in the latency only when something makes records wait.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from everstream.bench.workloads.catalogue import QUERIES, Query
from everstream.bench.workloads.graph_edges import Edges
from everstream.bench.workloads.inputs import Inputs
from everstream.bench.workloads.nexmark import Nexmark
from everstream.bench.workloads.words import Words
from everstream.core.scheme import Checkpointing
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Coordinated, Induced, Uncoordinated
from everstream.pipeline.stream import Pipeline

FACTOR = 10.0
"""All times of the paper are divided by this."""
PAPER_INTERVALS_S = (10.0, 15.0)
RUN_S = 14.0
KILL_S = 7.0
WARM_UP_S = 2.5
"""What comes in this time after the start is not counted: windows fill, code is compiled."""

RATES: dict[str, float] = {"nexmark": 50_000.0, "wordcount": 40_000.0, "nhop": 4_000.0}
"""Records per second, by the family of the query."""

PROTOCOLS = (
    "coordinated",
    "unaligned",
    "at-least-once",
    "uncoordinated",
    "hmnr",
    "bcs",
    "memory",
)
"""`memory` is uncoordinated with its logs in memory, as FERDiS had them."""
PAPER_NAMES = {"coordinated": "CC", "uncoordinated": "UC", "memory": "UC", "hmnr": "CIC"}
INEXACT = ("at-least-once", "memory")
"""The two that say that they are not exactly-once."""
PAPER_QUERIES = (
    *("nexmark-2-half", "nexmark-3-small", "nexmark-3-large", "nexmark-5-small"),
    *("nexmark-5-large", "nexmark-6-small", "nexmark-6-large"),
    *("wordcount-small", "wordcount-large", "nhop"),
)


@dataclass(frozen=True)
class Cell:
    """One run of the grid; its key names it in a file of results."""

    query: str
    protocol: str
    interval_s: float
    failure: bool
    repeat: int = 0

    @property
    def key(self) -> str:
        failure = "kill" if self.failure else "calm"
        return f"{self.query}/{self.protocol}/{self.interval_s:g}s/{failure}/{self.repeat}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Setting:
    """How long and how fast the runs of a grid are."""

    factor: float = FACTOR
    run_s: float = RUN_S
    kill_s: float = KILL_S
    warm_up_s: float = WARM_UP_S
    speed: float = 1.0
    """All rates are multiplied by this."""
    seed: int = 0

    def rate(self, query: Query) -> float:
        return RATES[query.name.split("-")[0]] * self.speed

    def inputs(self, query: Query, pipeline: Pipeline, *, total: int | None = None) -> Inputs:
        """The query's input, paced; with `total` records at full speed."""
        rate = self.rate(query)
        count = total if total is not None else int(rate * self.run_s)
        return Inputs(
            pipeline,
            nexmark=Nexmark(events=count, events_per_s=rate, seed=self.seed),
            words=Words(total=count, words_per_s=rate, seed=self.seed),
            edges=Edges(total=count, seed=self.seed, fresh=0.05),
            rate=rate if total is None else None,
            apart=True,
            factor=self.factor,
        )


def checkpointing(protocol: str, interval_s: float) -> Checkpointing:
    """The user's words for a protocol of the grid."""
    match protocol:
        case "coordinated":
            return Coordinated(every=interval_s)
        case "unaligned" | "at-least-once":
            return Coordinated(every=interval_s, mode=protocol)
        case "uncoordinated":
            return Uncoordinated(every=interval_s)
        case "memory":
            return Uncoordinated(every=interval_s, log="memory")
        case "hmnr" | "bcs":
            return Induced(every=interval_s, rule=protocol)
    raise UserError(f"protocol '{protocol}' is not one of {', '.join(PROTOCOLS)}.")


def cells(
    queries: Sequence[str],
    protocols: Sequence[str],
    intervals_s: Sequence[float],
    failures: Sequence[bool],
    repeats: int,
) -> list[Cell]:
    """The grid, repeat by repeat, so that a run cut short has something of everything."""
    for query in queries:
        if query not in QUERIES:
            raise UserError(f"query '{query}' is not one of {', '.join(QUERIES)}.")
    return list(_possible(product(range(repeats), queries, protocols, intervals_s, failures)))


def _possible(choices: Iterable[tuple[int, str, str, float, bool]]) -> Iterator[Cell]:
    for repeat, query, protocol, interval_s, failure in choices:
        if QUERIES[query].cyclic and protocol in ("coordinated", "at-least-once"):
            continue
        yield Cell(query, protocol, interval_s, failure, repeat)
