"""How fast a pipeline is back after SIGKILL, seen from its output, at a steady load.

A probe at the end of each shard writes down when each batch came out. New output is a record
that had not come out before, from the generation after the kill; the pipeline has caught up when
records come out as soon after they were due as before the kill. The slowest shard counts, not
only the one that was killed. Exactness is checked on a second, exactly-once output.
"""

import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from everstream.connectors.generate.paced import Paced
from everstream.connectors.generate.sources import Range
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.engine.reporting.listener import Listener
from everstream.engine.run import run
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer
from everstream.pipeline.stream import Pipeline, Stream
from everstream_lab.bench.report import Figure, Progress, Report, at_most, exactness

KEYS = 100


class Probe(Sink):
    """Writes a line per batch: when it came out and which records were in it."""

    delivery = Delivery.AT_LEAST_ONCE

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, shard: SinkShard) -> Writer:
        return _ProbeWriter(self.folder, shard)


class _ProbeWriter(Writer):
    def __init__(self, folder: str, shard: SinkShard) -> None:
        self.identity = {"shard": shard.shard, "generation": shard.generation}
        self.file = (Path(folder) / f"{shard.shard}-{shard.generation}.jsonl").open("a")

    def write(self, batch: Batch) -> None:
        numbers = [record[1] for record in batch]
        seen = {"at_s": time.monotonic(), "last": max(numbers)}
        self.file.write(json.dumps(self.identity | seen) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


@dataclass
class Restart:
    """The figures of one run with one kill."""

    first_output_s: float
    caught_up_s: float
    lost: int
    duplicated: int
    latency_before_s: float
    """95 of 100 records came out at most this long after they were due, before the kill."""
    pause_s: float
    """What a checkpoint takes from the shard that it costs most, in the middle of all."""
    recovery: dict[str, Any]
    curve: list[tuple[float, float]]
    """Seconds after the kill, latency in seconds."""


def counting(numbers: Stream, service_s: float) -> Stream:
    """The latest number of each key, on two shards; each record costs `service_s`."""
    latest = numbers.key_by(lambda n: n % KEYS).reduce(lambda _, n: n, name="last", shards=2)
    if not service_s:
        return latest

    def serve(batch: Batch) -> Batch:
        time.sleep(len(batch) * service_s)
        return batch

    return latest.map_batches(serve, name="serve")


def measure(
    *,
    rate: float = 20_000,
    seconds: float = 8.0,
    kill_after_s: float = 3.0,
    every_s: float = 1.0,
    target: str = "last",
    service_s: float = 0.0,
    master: str | None = None,
    spares: int = 0,
    listener: Listener | None = None,
    progress: Progress = lambda text: None,
) -> Restart:
    """One paced run; the worker of operator `target` is killed in the middle.

    With `service_s` each record waits that long for a service, one after the other in each of
    the two shards, so that the pipeline has a known limit to how fast it can catch up.
    With `spares`, this many further processes stand by.
    """
    records = int(rate * seconds)
    with tempfile.TemporaryDirectory(prefix="everstream-restart-") as folder:
        pipeline = Pipeline("restart")
        paced = Paced(Range(records), rate=rate, batch=500 if service_s else 65_536)
        numbers = pipeline.source(paced, name="numbers")
        latest = counting(numbers, service_s)
        latest.sink(Probe(folder), name="probe")
        latest.collect()
        progress(f"{rate:g} records/s for {seconds:g} s, kill of '{target}' at {kill_after_s:g} s")
        result = run(
            pipeline,
            checkpoint=Coordinated(every=every_s),
            master=master or f"local[{2 + spares}]",
            workers=2,
            spares=spares,
            kill=[f"{target}@{kill_after_s}s"],
            listener=listener,
        )
        lines = [
            json.loads(line)
            for path in Path(folder).glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
    [report] = result.recoveries
    expected = Counter((n % KEYS, n) for n in range(records))
    shown = Counter(result.collected())
    return _judge(
        lines,
        report,
        rate,
        lost=sum((expected - shown).values()),
        duplicated=sum((shown - expected).values()),
        pause_s=median(
            max(record.capture_s for record in manifest.records.values())
            for manifest in result.checkpoints
        ),
    )


def measure_rounds(
    *, rate: float, rounds: int, spares: int, progress: Progress = lambda text: None
) -> Report:
    """Some runs with one kill each."""
    runs = [measure(rate=rate, spares=spares, progress=progress) for _ in range(rounds)]
    first = at_most(0.15 if spares else 1.0)
    figures = [
        Figure.median("first_output", (run.first_output_s for run in runs), "s", first),
        Figure.median("caught_up", (run.caught_up_s for run in runs), "s", at_most(1.5)),
        *exactness(sum(run.lost for run in runs), sum(run.duplicated for run in runs)),
    ]
    settings = {"rate_per_s": rate, "spares": spares}
    return Report("restart", figures, settings, [vars(run) for run in runs])


def _judge(
    lines: list[dict[str, Any]],
    report: RecoveryReport,
    rate: float,
    lost: int,
    duplicated: int,
    pause_s: float,
) -> Restart:
    killed_s = report.start_s
    lines.sort(key=lambda line: float(line["at_s"]))
    at_s, last, shard, generation = (
        np.array([line[name] for line in lines]) for name in ("at_s", "last", "shard", "generation")
    )
    before = generation == generation.min()
    # The clock of the schedule: no record can come out before it is due.
    started_s = float((at_s[before] - last[before] / rate).min())
    latency_s = at_s - (started_s + last / rate)
    usual_s = float(np.quantile(latency_s[before & (at_s < killed_s)], 0.95))
    first_output_s = caught_up_s = 0.0
    for one in np.unique(shard):
        new = (shard == one) & ~before & (last > last[before & (shard == one)].max())
        back = new & (latency_s <= 1.1 * usual_s + 0.01)
        first_output_s = max(first_output_s, float(at_s[new][0] - killed_s))
        caught_up_s = max(caught_up_s, float(at_s[back][0] - killed_s))
    near = (at_s > killed_s - 1.5) & (at_s < killed_s + 3.0)
    curve = list(zip((at_s - killed_s)[near].tolist(), latency_s[near].tolist(), strict=True))
    return Restart(
        first_output_s=round(first_output_s, 3),
        caught_up_s=round(caught_up_s, 3),
        lost=lost,
        duplicated=duplicated,
        latency_before_s=round(usual_s, 4),
        pause_s=pause_s,
        recovery=report.to_json(),
        curve=curve,
    )
