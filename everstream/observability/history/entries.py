"""The entries of a history: what a run tells, as plain values that JSON can hold.

Everything that is seen of a run, on a page, in metrics, in a terminal, is made of these, whether
they come over a pipe a moment ago or from a store a week later. An entry has names, figures and
what the run has said aloud; no option that could hold a secret, and URLs without their passwords.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from everstream.core.checkpoint_record import CheckpointRecord
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.histogram import Histogram
from everstream.core.manifest import EpochManifest
from everstream.core.measures import Measures
from everstream.core.meter import Losses
from everstream.core.plan import Plan
from everstream.hiding import hidden, hidden_in, without_secret
from everstream.pipeline.graph import Broadcast, ByKey, Edge

Entry: TypeAlias = dict[str, Any]
"""{"kind": ..., "at": seconds since 1970, ...}"""

FORMAT = 1
"""Of entries. Each part of a history begins with the entry of its run, which says it."""
LONGEST = 4_000
"""Characters of a text that are kept."""


@dataclasses.dataclass(frozen=True)
class About:
    """What is said of a run beside its plan."""

    run: str
    """Tells this run from others in the same store."""
    store: str
    engine: str
    protocol: str
    interval_s: float | None
    logs: bool
    """Whether senders log what they send, so that there is a recovery line to speak of."""
    spark_ui: str | None
    configuration: dict[str, str]


def run_entry(plan: Plan, about: About, at: float) -> Entry:
    """A run begins, or goes on under a new driver."""
    graph = plan.graph
    return {
        "kind": "run",
        "format": FORMAT,
        "at": at,
        "run": about.run,
        "pipeline": graph.name,
        "store": without_secret(about.store),
        "engine": about.engine,
        "protocol": about.protocol,
        "interval_s": about.interval_s,
        "logs": about.logs,
        "spark_ui": about.spark_ui,
        "configuration": hidden_in(about.configuration),
        "operators": [
            {
                "name": node.name,
                "kind": node.kind.value,
                "chain": plan.chain_of[node.name],
                "shards": plan.chains[plan.chain_of[node.name]].shards,
            }
            for node in graph.nodes.values()
        ],
        "edges": [
            {
                "from": edge.sender,
                "to": edge.receiver,
                "routing": _routing(plan, edge),
                "feedback": edge.feedback,
            }
            for edge in graph.edges
        ],
        "shards": {str(shard): int(plan.worker_of[shard]) for shard in plan.shards},
        "workers": len(plan.workers),
    }


def sample_entry(
    measures: Measures, phase: str, epoch: int, records_read: int, totals: Mapping[str, int]
) -> Entry:
    """What shards and workers have measured so far."""
    return {
        "kind": "sample",
        "at": measures.wall_s,
        "phase": phase,
        "epoch": int(epoch),
        "records_read": records_read,
        "totals": dict(totals),
        "shards": {
            str(shard): {
                **_plain(meter),
                "counts": {
                    name: list(pair) for name, pair in measures.counts.get(shard, {}).items()
                },
            }
            for shard, meter in measures.shards.items()
        },
        "workers": {
            str(worker): {**_plain(there), "machine": there.machine.partition("/")[0]}
            for worker, there in measures.workers.items()
        },
    }


def checkpoint_entry(manifest: EpochManifest, at: float) -> Entry:
    """An epoch, or a recovery line, has become stable."""
    records = manifest.records.values()
    slowest = max(records, key=lambda record: record.capture_s + record.upload_s, default=None)
    return {
        "kind": "checkpoint",
        "at": at,
        "epoch": int(manifest.epoch),
        "final": manifest.final,
        "duration_s": round(manifest.duration_s, 4),
        "bytes": manifest.size_bytes,
        "slowest": None if slowest is None else str(slowest.shard),
        "shards": [_shard_checkpoint(record) for record in records],
    }


def given_up_entry(number: int, reason: str, at: float) -> Entry:
    """A checkpoint could not be had."""
    return {"kind": "checkpoint_failed", "at": at, "epoch": int(number), "reason": _kept(reason)}


def failure_entry(report: RecoveryReport, name: str, at: float) -> Entry:
    """A failure as far as it is known; told again, under the same name, when more is."""
    return {"kind": "failure", "at": at, "id": name, **hidden_in(report.to_json())}


def note_entry(text: str, warning: bool, at: float) -> Entry:
    return {"kind": "note", "at": at, "text": _kept(text), "warning": warning}


def kill_entry(operator: str, shard: int, at: float) -> Entry:
    """Somebody has asked for a kill, and it is about to happen."""
    return {"kind": "kill", "at": at, "operator": operator, "shard": shard}


def interval_entry(interval_s: float, at: float) -> Entry:
    """From now on checkpoints are so far apart."""
    return {"kind": "interval", "at": at, "interval_s": interval_s}


def driver_lost_entry(how: str, at: float) -> Entry:
    """The driver has died; until the next run entry nobody drives."""
    return {"kind": "driver_lost", "at": at, "how": _kept(how)}


def end_entry(outcome: str, error: str | None, at: float) -> Entry:
    said = None if error is None else _kept(error)
    return {"kind": "end", "at": at, "outcome": outcome, "error": said}


def _kept(text: str) -> str:
    """A text without passwords; not all of a very long one."""
    clean = hidden(text)  # first: what is cut in the middle of a password no longer looks like one
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]}..."


def _shard_checkpoint(record: CheckpointRecord) -> Entry:
    return {
        "shard": str(record.shard),
        "number": int(record.number),
        "aligned_s": round(record.aligned_s, 6),
        "capture_s": round(record.capture_s, 6),
        "upload_s": round(record.upload_s, 6),
        "bytes": record.size_bytes,
        "forced": record.forced,
    }


def _routing(plan: Plan, edge: Edge) -> str:
    if plan.fused(edge):
        return "fused"
    match edge.routing:
        case ByKey():
            return "by key"
        case Broadcast():
            return "broadcast"
        case _:
            return "on demand"


def _plain(measured: Any) -> Entry:
    return {field.name: _value(getattr(measured, field.name)) for field in _fields(type(measured))}


def _fields(kind: Any) -> Sequence["dataclasses.Field[Any]"]:
    return dataclasses.fields(kind)


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _value(of_it) for name, of_it in value.items()}
    if isinstance(value, Histogram):
        return {str(bucket): count for bucket, count in enumerate(value.counts) if count}
    if isinstance(value, Losses):
        return _plain(value)
    return value
