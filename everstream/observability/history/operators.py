"""The tables of a view: operators, edges, shards and workers, from a run's plan and its flow."""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from everstream.events import OperatorLayout, RunStarted
from everstream.observability.history.flow import LOST, RunMetrics

Row = dict[str, Any]
SIZES = ("state_bytes", "state_keys", "log_bytes")
SHARES = {"busy": "busy_s", "waiting": "waiting_s", "blocked": "blocked_s"}


def operators_of(run: RunStarted, flow: RunMetrics) -> list[Row]:
    shards = _by_chain(run)
    return [_operator(operator, shards[operator.chain], flow) for operator in run.operators]


def edges_of(run: RunStarted, flow: RunMetrics) -> list[Row]:
    """With a rate where it is unambiguous: at an operator with one edge on that side."""
    chains = {operator.name: operator.chain for operator in run.operators}
    shards = _by_chain(run)
    rows = []
    for edge in run.edges:
        sender, receiver = edge.sender, edge.receiver
        per_s = None
        if sum(other.receiver == receiver for other in run.edges) == 1:
            per_s = flow.per_s(("in", shard, receiver) for shard in shards[chains[receiver]])
        elif sum(other.sender == sender for other in run.edges) == 1:
            per_s = flow.per_s(("out", shard, sender) for shard in shards[chains[sender]])
        more = {"routing": edge.routing, "feedback": edge.feedback, "per_s": rounded(per_s)}
        rows.append({"from": sender, "to": receiver, **more})
    return rows


def shards_of(run: RunStarted, flow: RunMetrics, phase: str, now: float) -> list[Row]:
    last = {operator.chain: operator.name for operator in run.operators}
    rows = []
    timed = {
        shard: flow.now(shard, "source_time_us")
        for shard in run.shards
        if flow.now(shard, "time_waits_for") is not None
    }
    reached = [watermark for watermark in timed.values() if watermark is not None]
    for shard, worker in run.shards.items():
        chain, _, number = shard.rpartition(":")
        lost = flow.at is not None and str(worker) not in flow.alive
        watermark = flow.now(shard, "watermark")
        rows.append(
            {
                "id": shard,
                "chain": chain,
                "number": int(number),
                "worker": worker,
                "phase": "lost" if lost and phase in ("running", "restoring") else phase,
                "in_per_s": rounded(flow.rising.per_s(("in", shard, chain))),
                "out_per_s": rounded(flow.rising.per_s(("out", shard, last[chain]))),
                "bytes_in_per_s": rounded(flow.rising.per_s(("bytes_in", shard))),
                "bytes_out_per_s": rounded(flow.rising.per_s(("bytes_out", shard))),
                **{name: flow.share(of, shard) for name, of in SHARES.items()},
                **{name: flow.now(shard, name) for name in ("frames_waiting", "watermark")},
                "lag_s": None if watermark is None else round(now - watermark / 1000, 3),
                "holds_back": flow.now(shard, "time_waits_for")
                if shard in timed
                and reached
                and _is_slowest(timed[shard], timed.values(), max(reached))
                else None,
                **{name: flow.now(shard, name) for name in SIZES},
            }
        )
    return rows


def _is_slowest(watermark: int | None, others: Collection[int | None], ahead: int) -> bool:
    """Whether event time waits for this source shard, and another one is ahead of it."""
    return watermark is None or (
        None not in others
        and watermark < ahead
        and watermark == min(o for o in others if o is not None)
    )


def workers_of(run: RunStarted, flow: RunMetrics) -> list[Row]:
    rows = []
    for number in range(run.workers):
        name = str(number)
        there = flow.workers.get(name, {})
        alive = name in flow.alive
        rows.append(
            {
                "id": number,
                **{of: there.get(of) for of in ("machine", "pid", "attempt")},
                "alive": alive,
                "cpu": rounded(flow.rising.per_s(("cpu_s", "worker", name)) if alive else None, 4),
                "memory_bytes": there.get("memory_bytes") or None if alive else None,
                "peak_bytes": there.get("peak_bytes") or None,
                "collecting": rounded(
                    flow.rising.per_s(("collecting_s", "worker", name)) if alive else None, 4
                ),
            }
        )
    return rows


def _operator(operator: OperatorLayout, shards: list[str], flow: RunMetrics) -> Row:
    name = operator.name
    counted = flow.counted(name) or (None, None)
    shares = {
        column: [share for shard in shards if (share := flow.share(of, shard)) is not None]
        for column, of in SHARES.items()
    }
    return {
        **asdict(operator),
        "records_in": counted[0],
        "records_out": counted[1],
        "in_per_s": rounded(flow.per_s(("in", shard, name) for shard in shards)),
        "out_per_s": rounded(flow.per_s(("out", shard, name) for shard in shards)),
        **{
            column: round(sum(known) / len(known), 4) if known else None
            for column, known in shares.items()
        },
        "busiest": max(shares["busy"], default=None),
        **{lost: flow.lost(lost, name, shards) for lost in LOST},
    }


def _by_chain(run: RunStarted) -> dict[str, list[str]]:
    chains: dict[str, list[str]] = {}
    for shard in run.shards:
        chains.setdefault(shard.rpartition(":")[0], []).append(shard)
    return chains


def rounded(rate: float | None, digits: int = 1) -> float | None:
    return None if rate is None else round(rate, digits)
