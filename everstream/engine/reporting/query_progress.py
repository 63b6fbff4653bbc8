"""The progress of a run with the fields of Spark's StreamingQueryProgress, for tools that read those.

There is a progress when a newer epoch is found stable, as Spark has one per batch; epochs that follow
each other within a fraction of a second share one. Fields that have no meaning here,
such as offsets and durations of planning, are left out.
"""

import uuid
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

from everstream.events import Progressed, Resumed, RunEvent, RunStarted

KEPT: Final = 100
"""Like spark.sql.streaming.numRecentProgressUpdates."""


class QueryProgress:
    """Takes the events of a run and keeps its newest progresses, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._started: RunStarted | None = None
        self._resumed = False
        self._epoch = 0
        self._since_s = 0.0
        self._totals: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def recent(self) -> list[dict[str, Any]]:
        return list(self._kept)

    def take(self, event: RunEvent) -> None:
        match event:
            case RunStarted():
                self._started, self._since_s = event, event.at
            case Resumed(epoch=epoch):
                self._resumed, self._epoch = True, epoch
            case Progressed(status=status) if self._started is not None:
                self._totals = dict(status.totals)
                if self._resumed:  # what earlier runs have read is not progress of this one
                    self._resumed, self._before = False, self._totals
                if status.epoch > self._epoch:
                    self._kept.append(self._progress(self._started, status.epoch, event.at))
                    self._epoch, self._since_s, self._before = status.epoch, event.at, self._totals

    def _progress(self, started: RunStarted, epoch: int, at_s: float) -> dict[str, Any]:
        lasted_s = at_s - self._since_s
        of_kind = {
            kind: {o.name: self._new(o.name) for o in started.operators if o.kind == kind}
            for kind in ("source", "sink")
        }
        sources, sinks = of_kind["source"], of_kind["sink"]
        return {
            # The same for all runs of a pipeline with one store, as Spark's is for a checkpoint.
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{started.store}#{started.pipeline}")),
            "runId": started.run,
            "name": started.pipeline,
            "timestamp": _iso(self._since_s),
            "batchId": epoch,
            "batchDuration": round(lasted_s * 1000),
            **_rates(sum(sources.values()), lasted_s),
            "sources": [
                {"description": name, **_rates(rows, lasted_s)} for name, rows in sources.items()
            ],
            "sink": {"description": ", ".join(sinks), "numOutputRows": sum(sinks.values())},
        }

    def _new(self, operator: str) -> int:
        """Records since the last progress; a recovery may have lowered the total."""
        return max(0, self._totals.get(operator, 0) - self._before.get(operator, 0))


def _rates(rows: int, lasted_s: float) -> dict[str, Any]:
    """Records are processed as they are read, so both rates are the same."""
    per_s = rows / lasted_s if lasted_s > 0 else 0.0
    return {"numInputRows": rows, "inputRowsPerSecond": per_s, "processedRowsPerSecond": per_s}


def _iso(at_s: float) -> str:
    """As Spark writes times: 2026-01-31T12:00:00.000Z."""
    text = datetime.fromtimestamp(at_s, tz=UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
