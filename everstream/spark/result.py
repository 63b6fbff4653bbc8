"""What a run gives back: counts, timings, checkpoints, one report per failure, and output."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from everstream.core.manifest import EpochManifest
from everstream.core.orders import Outcome
from everstream.core.recovery import RecoveryReport
from everstream.core.tally import CheckpointTally
from everstream.errors import UserError
from everstream.pipeline.batch import Batch, records_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class RunResult:
    """The outcome of one run of a pipeline."""

    pipeline: str
    outcome: Outcome
    wall_s: float
    """From the first shard running to the end; Spark's own start is not in it."""
    startup_s: float
    counts: dict[str, tuple[int, int]]
    """Operator -> records in, records out, over all shards; each record counted once."""
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    checkpoints: list[EpochManifest] = field(default_factory=list)
    recoveries: list[RecoveryReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    store: str = ""
    resumed_from: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Operator -> records left out because of an error, of those with on_error= that left any."""
    outputs: Mapping[str, list[Batch]] = field(default_factory=dict)
    tally: CheckpointTally = field(default_factory=CheckpointTally)
    """The checkpoints of single shards."""
    lost_frames: int = 0
    """Frames that died with a log in memory."""

    @property
    def records_in(self) -> int:
        return sum(self.counts.get(name, (0, 0))[1] for name in self.sources)

    @property
    def records_out(self) -> int:
        return sum(self.counts.get(name, (0, 0))[0] for name in self.sinks)

    def batches(self, name: str = "collect") -> list[Batch]:
        """What a collect sink gathered, as it came."""
        if name not in self.outputs:
            known = ", ".join(self.outputs) or "none"
            raise UserError(f"there is no collect sink '{name}'; this pipeline has: {known}.")
        return self.outputs[name]

    def collected(self, name: str = "collect") -> list[Any]:
        """What a collect sink gathered, record by record."""
        return [record for batch in self.batches(name) for record in records_of(batch)]

    def to_polars(self, name: str = "collect") -> pl.DataFrame:
        """What a collect sink gathered, as one Polars DataFrame."""
        batches = self.batches(name)
        frames = [b if isinstance(b, pl.DataFrame) else _frame_of(b) for b in batches if len(b)]
        return pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame()

    def to_spark(self, spark: "SparkSession", name: str = "collect") -> "DataFrame":
        """What a collect sink gathered, as a Spark DataFrame."""
        return spark.createDataFrame(self.to_polars(name).to_arrow())

    def to_json(self) -> dict[str, Any]:
        rate = self.records_in / self.wall_s if self.wall_s > 0 else 0.0
        return {
            "pipeline": self.pipeline,
            "outcome": self.outcome.value,
            "wall_s": round(self.wall_s, 4),
            "startup_s": round(self.startup_s, 4),
            "records_in": self.records_in,
            "records_out": self.records_out,
            "records_per_s": round(rate, 1),
            "counts": {name: list(pair) for name, pair in self.counts.items()},
            "skipped": self.skipped,
            "resumed_from": self.resumed_from,
            "checkpoints": [checkpoint_json(manifest) for manifest in self.checkpoints],
            "recoveries": [report.to_json() for report in self.recoveries],
            "notes": self.notes,
            "store": self.store,
        }

    def write_json(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n")


def checkpoint_json(manifest: EpochManifest) -> dict[str, Any]:
    """One checkpoint as it stands in a result's JSON."""
    return {
        "epoch": manifest.epoch,
        "final": manifest.final,
        "started_s": round(manifest.began_s, 4),
        "duration_s": round(manifest.duration_s, 4),
        "bytes": manifest.size_bytes,
        "shards": [
            {
                "shard": str(record.shard),
                "capture_s": round(record.capture_s, 6),
                "upload_s": round(record.upload_s, 6),
                "bytes": record.size_bytes,
            }
            for record in manifest.records.values()
        ],
    }


def _frame_of(records: list[Any]) -> pl.DataFrame:
    """Rows from dicts; columns _1, _2, ... from tuples, as Spark names them; else one column."""
    first = records[0]
    if isinstance(first, dict):
        return pl.DataFrame(records, infer_schema_length=None)
    if isinstance(first, tuple):
        names = [f"_{position + 1}" for position in range(len(first))]
        return pl.DataFrame(records, schema=names, orient="row", infer_schema_length=None)
    return pl.DataFrame({"value": records}, strict=False)
