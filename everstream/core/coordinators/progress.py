"""How far the run has come, as its shards report, and the totals of its checkpoints."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from everstream.core.checkpointing.manifest import shown_once
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import Epoch, Generation, ShardId
from everstream.core.messages import Progress
from everstream.core.plan import Plan
from everstream.events import listed
from everstream.pipeline.graph import Kind

_BEHIND = "back-pressure: the marker has not reached"
_SAVED = "the size of the state: still being captured by"
_STORED = "the store: it has not saved the checkpoint of"
_PLACES = (_BEHIND, _SAVED, _STORED)


class RunProgress:
    """The newest progress report of each shard, and their totals."""

    def __init__(self, plan: Plan) -> None:
        self.sources = frozenset(node.name for node in plan.graph.of_kind(Kind.SOURCE))
        self._plan = plan
        self._shown_once = shown_once(plan)
        self._reports: dict[ShardId, Progress] = {}

    def heard(self, report: Progress) -> None:
        self._reports[report.shard] = report

    def went_back(
        self, generation: Generation, records: Iterable[tuple[ShardId, CheckpointRecord | None]]
    ) -> None:
        """These shards are back at their checkpoints (None: at the empty start)."""
        for shard, record in records:
            counts = record.counts if record is not None else {}
            lost = record.lost_frames if record is not None else 0
            self._reports[shard] = Progress(shard, generation, counts, lost_frames=lost)

    def forget(self) -> None:
        self._reports = {}

    def holding_up(self, epoch: Epoch, shards: Iterable[ShardId]) -> str:
        """What holds up this epoch at the shards that it is missing, as far as known."""
        places: dict[str, list[str]] = {}
        for shard in sorted(shards):
            places.setdefault(self._place(self._reports.get(shard), epoch), []).append(str(shard))
        parts = (f"{place} {listed(places[place])}" for place in _PLACES if place in places)
        return "; by ".join(parts)

    def _place(self, report: Progress | None, epoch: Epoch) -> str:
        if report is None or (report.taken < epoch and not report.ended):
            return _BEHIND
        return _STORED if report.handed_over >= epoch or report.ended else _SAVED

    def totals(self) -> dict[str, int]:
        """Operator -> records received so far, over all its shards (sources: emitted)."""
        sums: dict[str, int] = {}
        for report in self._reports.values():
            for name, (records_in, records_out) in report.counts.items():
                count = records_out if name in self.sources else records_in
                sums[name] = sums.get(name, 0) + count
        return sums

    def records_read(self) -> int:
        totals = self.totals()
        return sum(totals.get(name, 0) for name in self.sources)

    def shown(self) -> dict[str, int]:
        """Sinks that commit nothing twice -> records they have received."""
        totals = self.totals()
        return {sink: totals.get(sink, 0) for sink in self._shown_once}

    def sources_ended(self) -> bool:
        return self._ended().issuperset(self._plan.source_shards())

    def sources_caught_up(self) -> bool:
        """Every source has emitted everything that existed when the run started, or has ended."""
        caught_up = {shard for shard, report in self._reports.items() if report.caught_up}
        return (caught_up | self._ended()).issuperset(self._plan.source_shards())

    def all_ended(self) -> bool:
        return self._ended().issuperset(self._plan.shards)

    def _ended(self) -> set[ShardId]:
        return {shard for shard, report in self._reports.items() if report.ended}

    def lost_frames(self, line: Mapping[ShardId, CheckpointRecord]) -> int:
        """Frames that could not be sent again, because a log was lost with its process."""
        heard = {shard: report.lost_frames for shard, report in self._reports.items()}
        saved = {shard: record.lost_frames for shard, record in line.items()}
        return sum(max(heard.get(s, 0), saved.get(s, 0)) for s in self._plan.shards)


@dataclass
class CheckpointStats:
    """Durable checkpoints of single shards, whether or not any was ever restored."""

    regular: int = 0
    forced: int = 0
    size_bytes: int = 0
    log_bytes: int = 0
    """What was sent between checkpoints and logged with them."""
    capture_s: float = 0.0
    upload_s: float = 0.0

    def add(self, record: CheckpointRecord) -> None:
        if record.forced:
            self.forced += 1
        else:
            self.regular += 1
        self.size_bytes += record.size_bytes
        self.capture_s += record.capture_s
        self.upload_s += record.upload_s

    def to_json(self) -> dict[str, Any]:
        count = max(1, self.regular + self.forced)
        return {
            "regular": self.regular,
            "forced": self.forced,
            "size_bytes": self.size_bytes,
            "log_bytes": self.log_bytes,
            "capture_ms": round(1000 * self.capture_s / count, 3),
            "upload_ms": round(1000 * self.upload_s / count, 3),
        }
