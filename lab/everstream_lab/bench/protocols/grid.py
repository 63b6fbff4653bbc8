"""What is compared: queries, protocols, intervals and failures, scaled to a small machine.

FERDiS ran on 32 cores for four minutes a run with checkpoints every 10 or 15 seconds. Here every
time of it (interval, window, run) is divided by one factor, and rates are what two cores take
with room to spare, so that waiting shows in the latency only when something makes records wait.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias

from everstream.core.registry import named
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Checkpointing, EngineName, KeptLog, Uncoordinated
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.workloads.catalogue import QUERIES, Query
from everstream_lab.bench.workloads.graph_edges import Edges
from everstream_lab.bench.workloads.inputs import Inputs
from everstream_lab.bench.workloads.nexmark import Nexmark
from everstream_lab.bench.workloads.words import Words

FACTOR = 10.0
"""All times of the paper are divided by this."""
PAPER_INTERVALS_S = (10.0, 15.0)
RUN_S = 14.0
KILL_S = 7.0
WARM_UP_S = 2.5
"""What comes in this time after the start is not counted: windows fill, code is compiled."""

RATES: dict[str, float] = {"nexmark": 50_000.0, "wordcount": 40_000.0, "nhop": 4_000.0}
"""Records per second, by the family of the query."""

PAPER_NAMES = {"aligned": "CC", "uncoordinated": "UC", "hmnr": "CIC"}
PAPER_QUERIES = (
    *("nexmark-2-half", "nexmark-3-small", "nexmark-3-large", "nexmark-5-small"),
    *("nexmark-5-large", "nexmark-6-small", "nexmark-6-large"),
    *("wordcount-small", "wordcount-large", "nhop"),
)


Place: TypeAlias = Literal["sink", "kafka"]
"""Where output is timed: in the sink's process, or by a Kafka broker outside."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid; its key names it in a file of results."""

    query: str
    protocol: str
    interval_s: float
    failure: bool
    repeat: int = 0
    log: KeptLog = "durable"
    """In memory, as FERDiS had them, only for comparison."""
    engine: EngineName = "tasks"
    at: Place = "sink"

    @property
    def way(self) -> str:
        """Protocol and log, or the other engine, as tables and files of results name them."""
        return way_of(self.protocol, self.log) if self.engine == "tasks" else self.engine

    @property
    def exact(self) -> bool:
        return named(self.protocol).exactly_once and self.log == "durable"

    @property
    def key(self) -> str:
        failure = "kill" if self.failure else "calm"
        place = "" if self.at == "sink" else f"/{self.at}"
        return f"{self.query}/{self.way}/{self.interval_s:g}s/{failure}/{self.repeat}{place}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def way_of(protocol: str, log: KeptLog) -> str:
    return protocol if log == "durable" else f"{protocol} ({log})"


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

    def inputs(
        self,
        query: Query,
        pipeline: Pipeline,
        *,
        total: int | None = None,
    ) -> Inputs:
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


def checkpointing(
    protocol: str, interval_s: float, log: KeptLog = "durable"
) -> Checkpointing | None:
    """The protocol of this name, so often."""
    choice = named(protocol).choice
    if isinstance(choice, Uncoordinated):
        return replace(choice, every=interval_s, log=log)
    return None if choice is None else replace(choice, every=interval_s)


def cells(
    queries: Sequence[str],
    protocols: Sequence[str],
    intervals_s: Sequence[float],
    failures: Sequence[bool],
    repeats: int,
    *,
    memory: bool = True,
    microbatch: bool = False,
    at: Place = "sink",
) -> list[Cell]:
    """The grid, repeat by repeat, so that a run cut short has something of everything.

    With `memory`, protocols with logs come with logs in memory, too, as FERDiS had them; with
    `microbatch`, aligned ones come with one Spark job per epoch, too.
    """
    for query in queries:
        if query not in QUERIES:
            raise UserError(f"query '{query}' is not one of {', '.join(QUERIES)}.")
    ways: list[tuple[str, KeptLog, EngineName]] = [
        (named(protocol).name, "durable", "tasks") for protocol in protocols
    ]
    if memory:
        ways += [(name, "memory", "tasks") for name in protocols if named(name).logs]
    if microbatch and "aligned" in protocols:
        ways.append(("aligned", "durable", "microbatch"))
    return [
        Cell(query, protocol, interval_s, failure, repeat, log, engine, at)
        for repeat, query, (protocol, log, engine), interval_s, failure in product(
            range(repeats), queries, ways, intervals_s, failures
        )
        if named(protocol).cycles or engine == "microbatch" or not QUERIES[query].cyclic
        if named(protocol).choice is not None or interval_s == intervals_s[0]
    ]
