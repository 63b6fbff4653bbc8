"""What logs and piggybacked vectors cost, at full speed and in ratios taken within one run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everstream.core.registry import PROTOCOLS
from everstream.engine.run import run
from everstream.pipeline.checkpointing import CommunicationInduced, KeptLog
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.protocols.grid import Setting, checkpointing, way_of
from everstream_lab.bench.workloads.catalogue import QUERIES

EVERY_S = 1.0
ACYCLIC, CYCLIC = "nexmark-2-half", "nhop"


@dataclass(frozen=True)
class Costs:
    """Throughput of every protocol, and two shares of it lost, best round against best round."""

    log_cost: float
    """Logs in the store against logs in memory, on NEXMark 2: at most 0.10 is wanted."""
    cic_cost: float
    """HMNR against uncoordinated, on NHop: at most 0.05 is wanted."""
    records_per_s: dict[str, list[float]]
    """By query and protocol, round by round; what `everstream advise --measured` weighs."""
    every_s: float = EVERY_S

    def to_json(self) -> dict[str, Any]:
        return {
            "log_cost": round(self.log_cost, 4),
            "cic_cost": round(self.cic_cost, 4),
            "every_s": self.every_s,
            "records_per_s": {
                k: [round(v) for v in rates] for k, rates in self.records_per_s.items()
            },
        }


def measure_costs(
    rounds: int = 3,
    events: int = 40_000_000,
    edges: int = 1_000_000,
    master: str = "local[4]",
    progress: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Runs all ways to checkpoint in turn, round by round, after a short one that loads everything."""
    rates: dict[str, list[float]] = {}
    for query, total in ((ACYCLIC, events), (CYCLIC, edges)):
        _rate(query, "none", "durable", total // 10, master)
        for number in range(rounds):
            for protocol, log in _ways(query):
                way = way_of(protocol, log)
                progress(f"{query}, {way}, at full speed, round {number + 1} of {rounds}")
                rate = _rate(query, protocol, log, total, master)
                rates.setdefault(f"{query}/{way}", []).append(rate)
    best = {name: max(measured) for name, measured in rates.items()}
    in_memory = best[f"{ACYCLIC}/{way_of('uncoordinated', 'memory')}"]
    return Costs(
        log_cost=1 - best[f"{ACYCLIC}/uncoordinated"] / in_memory,
        cic_cost=1 - best[f"{CYCLIC}/hmnr"] / best[f"{CYCLIC}/uncoordinated"],
        records_per_s=rates,
    )


def _ways(query: str) -> list[tuple[str, KeptLog]]:
    """Without a cycle the induced rules do nothing, and logs in memory stand beside durable ones."""
    cyclic = QUERIES[query].cyclic
    ways: list[tuple[str, KeptLog]] = [
        (protocol.name, "durable")
        for protocol in PROTOCOLS.values()
        if (protocol.cycles if cyclic else not isinstance(protocol.choice, CommunicationInduced))
    ]
    return ways if cyclic else [*ways, ("uncoordinated", "memory")]


def _rate(name: str, protocol: str, log: KeptLog, total: int, master: str) -> float:
    query = QUERIES[name]
    pipeline = Pipeline(f"costs-{name}")
    query.build(Setting().inputs(query, pipeline, total=total)).collect()
    result = run(pipeline, checkpoint=checkpointing(protocol, EVERY_S, log), master=master)
    return result.records_in / result.wall_s
