"""The result of a run: counts, timings, checkpoints, one report per failure, and output."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.coordinators.progress import CheckpointStats
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.orders import Outcome
from everstream.core.plan import Plan
from everstream.engine.reporting.building import epoch_stable
from everstream.engine.reporting.notebook import result_html
from everstream.errors import UserError
from everstream.events import EpochStable, RunEvent, sentence
from everstream.pipeline.batch import Batch, columns_of, records_of
from everstream.pipeline.exact import Unfit, together
from everstream.pipeline.graph import Graph, Kind
from everstream.pipeline.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN = 1_000
"""Maximum characters of a function's return value in the JSON of a result."""


@dataclass
class RunResult:
    """The result of a run: counts, timings, checkpoints, a report per failure, collected output.

    >>> result = es.Pipeline("squares").source(es.Range(4)).map(lambda n: n * n).collect().run()
    >>> result.outcome.value, result.records_in, result.records_out
    ('finished', 4, 4)
    >>> result.counts["map"]
    (4, 4)
    """

    pipeline: str
    outcome: Outcome
    """Finished or stopped; a run that failed raises its error instead."""
    wall_s: float
    """From the start of the first shard to the end; does not include the start of Spark."""
    startup_s: float
    """From the call to the start of the first shard, most of it the start of Spark."""
    counts: dict[str, tuple[int, int]]
    """Operator -> records in, records out, over all shards; each record counted once."""
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    checkpoints: list[EpochManifest] = field(default_factory=list)
    """The epochs that became stable, in that order; the newest 1,000."""
    checkpoint_count: int = 0
    """How many epochs became stable."""
    recoveries: list[RecoveryReport] = field(default_factory=list)
    """One for each failure that the run survived, the newest 1,000."""
    recovery_count: int = 0
    """How many failures the run survived."""
    events: list[RunEvent] = field(default_factory=list)
    """The events that have a sentence, the newest 1,000; `everstream.events` describes them."""
    store: str = ""
    resumed_from: int = 0
    """The epoch the run resumed from; 0 if it started without a checkpoint."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Operator -> records skipped because of an error (on_error=); operators that skipped any."""
    outputs: Mapping[str, list[Batch]] = field(default_factory=dict)
    """Collect sink -> its batches; easier to read with `collected` or `to_polars`."""
    checkpoint_stats: CheckpointStats = field(default_factory=CheckpointStats)
    """The checkpoints of individual shards."""
    lost_frames: int = 0
    """Frames lost because their log was only in memory."""
    forfeited: float = 0.0
    """Records that paced sources without catch_up did not emit in time and do not make up for."""
    monitored: pl.DataFrame = field(default_factory=pl.DataFrame)
    """The samples of the run's sampler, one row each; no rows without a sampler."""
    started_s: float = 0.0
    """When the first shard started, on the clock of time.monotonic, like the times of recoveries."""
    returned: Any = None
    """The return value of the annotated function that made the pipeline, if it has finished."""

    @property
    def notes(self) -> list[str]:
        """The sentences of `events`."""
        return [text for event in self.events if (text := sentence(event)) is not None]

    @property
    def records_in(self) -> int:
        """Records emitted by the sources, each counted once."""
        return sum(self.counts.get(name, (0, 0))[1] for name in self.sources)

    @property
    def records_out(self) -> int:
        """Records that reached the sinks, each counted once."""
        return sum(self.counts.get(name, (0, 0))[0] for name in self.sinks)

    def _repr_html_(self) -> str:
        return result_html(self)

    def batches(self, name: str = "collect") -> list[Batch]:
        """The output of a collect sink as it arrived: lists of records, or DataFrames."""
        if name not in self.outputs:
            known = ", ".join(self.outputs) or "none"
            raise UserError(f"there is no collect sink '{name}'; this pipeline has: {known}.")
        return self.outputs[name]

    def collected(self, name: str = "collect") -> list[Any]:
        """The output of a collect sink, record by record; rows as dicts.

        >>> es.Pipeline("rows").source(es.Range(2, column="n")).collect().run().collected()
        [{'n': 0}, {'n': 1}]
        """
        return [record for batch in self.batches(name) for record in records_of(batch)]

    def to_polars(self, name: str = "collect") -> pl.DataFrame:
        """The output of a collect sink as one Polars DataFrame.

        Tuples become the columns `_1`, `_2`, ...; dicts become columns by key; other records become
        the column `value`. A column that a record does not have is None.

        >>> es.Pipeline("numbers").source(es.Range(3)).collect().run().to_polars()["value"].sum()
        3
        """
        batches = self.batches(name)
        frames = [b if isinstance(b, pl.DataFrame) else _frame_of(b) for b in batches if len(b)]
        try:
            return together(frames) if frames else pl.DataFrame()
        except Unfit as problem:
            raise UserError(
                f"the records of '{name}' do not fit into one DataFrame: {problem}. Give the column "
                "one type with a map before collect(), or read the records with collected()."
            ) from problem

    def to_spark(self, spark: "SparkSession", name: str = "collect") -> "DataFrame":
        """The output of a collect sink as a Spark DataFrame.

        >>> pipeline = es.Pipeline("to-spark").source(es.Range(3, column="n")).collect()
        >>> pipeline.run(spark=spark).to_spark(spark).filter("n > 0").count()
        2
        """
        return spark.createDataFrame(self.to_polars(name).to_arrow())

    def to_json(self) -> dict[str, Any]:
        """The result without its output, as plain values: the content of `everstream run --json`."""
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
            "forfeited": round(self.forfeited, 1),
            "resumed_from": self.resumed_from,
            "checkpoint_count": self.checkpoint_count,
            "recovery_count": self.recovery_count,
            "checkpoints": [
                checkpoint_json(epoch_stable(manifest)) for manifest in self.checkpoints
            ],
            "recoveries": [report.to_json() for report in self.recoveries],
            "notes": self.notes,
            "store": self.store,
            **({} if self.returned is None else {"returned": _shortened(repr(self.returned))}),
        }

    def left_out(self, graph: Graph) -> list[str]:
        """Sentences about records that are missing from the output."""
        texts = []
        if self.lost_frames:
            texts.append(
                f"{self.lost_frames} frame(s) were lost with the logs of failed workers; use "
                'log="durable" to lose nothing'
            )
        if self.forfeited >= 1:
            texts.append(
                f"{self.forfeited:,.0f} record(s) were due while a source could not emit them, and "
                "are not made up for: the load was lower than its pattern, and latencies do not "
                "include that waiting; catch_up=True (--catch-up) includes it"
            )
        for name, count in self.skipped.items():
            kept = graph.nodes[name].dead_letters is not None
            where = f"; they are kept in {self.store}/dead_letters/{name}" if kept else ""
            written_as = graph.nodes[name].written_as
            texts.append(f"'{written_as}' skipped {count} record(s) with errors{where}")
        return texts

    def write_json(self, path: str | Path) -> None:
        """Write `to_json` to a file; `everstream.planning.advise(from_run=...)` reads it."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n")


def result_of(
    plan: Plan, store: str, outcome: Outcome, newest: EpochManifest | None, resumed_from: int
) -> RunResult:
    """Counts from the newest checkpoint and output from the sinks; the driver adds the rest."""
    counts: dict[str, tuple[int, int]] = {}
    skipped: Counter[str] = Counter()
    for record in newest.records.values() if newest is not None else ():
        for name, (records_in, records_out) in record.counts.items():
            before = counts.get(name, (0, 0))
            counts[name] = (before[0] + records_in, before[1] + records_out)
        skipped.update(record.skipped)
    graph = plan.graph
    outputs: dict[str, Any] = {}
    for node in graph.of_kind(Kind.SINK):
        assert isinstance(node.what, Sink)
        gathered = node.what.results(graph.name, node.name, store)
        if gathered is not None:
            outputs[node.name] = gathered
    return RunResult(
        pipeline=graph.name,
        outcome=outcome,
        wall_s=0.0,
        startup_s=0.0,
        counts=counts,
        sources=tuple(node.name for node in graph.of_kind(Kind.SOURCE)),
        sinks=tuple(node.name for node in graph.of_kind(Kind.SINK)),
        store=store,
        resumed_from=resumed_from,
        skipped=dict(skipped),
        outputs=outputs,
    )


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def checkpoint_json(event: EpochStable) -> dict[str, Any]:
    return {
        "epoch": event.epoch,
        "final": event.final,
        "started_s": event.began_s,
        "duration_s": event.duration_s,
        "bytes": event.bytes,
        "shards": [
            {
                "shard": shard.shard,
                "capture_s": shard.capture_s,
                "upload_s": shard.upload_s,
                "bytes": shard.bytes,
            }
            for shard in event.shards
        ],
    }


def _frame_of(records: list[Any]) -> pl.DataFrame:
    """Rows from dicts; columns _1, _2, ... from tuples, as Spark names them; else one column."""
    first = records[0]
    if isinstance(first, tuple):
        records = [{f"_{place}": v for place, v in enumerate(r, start=1)} for r in records]
    elif not isinstance(first, dict):
        records = [{"value": record} for record in records]
    return columns_of(records, "to_polars")
