"""What a change of shards costs a running pipeline, seen from its output, at a steady load."""

import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from everstream.connectors.collect import Collect
from everstream.connectors.generate.paced import Paced
from everstream.connectors.generate.sources import Range
from everstream.engine.reporting.listener import Listener
from everstream.engine.run import start
from everstream.events import Progressed, RunEvent
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import Checkpointing, Coordinated
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.recovery.restart import KEYS
from everstream_lab.bench.report import Figure, Progress, Report, at_most, exactness


class Times(Sink):
    """Writes down when batches come out."""

    delivery = Delivery.AT_LEAST_ONCE

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, shard: SinkShard) -> Writer:
        return _TimesWriter(f"{self.folder}/{shard.shard}-{shard.generation}")


class _TimesWriter(Writer):
    def __init__(self, path: str) -> None:
        self.file = Path(path).open("a")  # noqa: SIM115 - for as long as the writer is there

    def write(self, batch: Batch) -> None:
        self.file.write(f"{time.monotonic()}\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


@dataclass
class Change:
    """One change of shards while a pipeline ran."""

    shards: int
    pause_s: float
    """The longest time without any output around the change."""
    asked_s: float
    """From asking for it until the new shards were at work."""


class _Begun(Listener):
    def __init__(self) -> None:
        self.running = threading.Event()

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, Progressed) and event.status.records_read:
            self.running.set()


def measure(
    *,
    rate: float = 20_000,
    steps: tuple[int, ...] = (4, 1, 3),
    apart_s: float = 2.0,
    checkpoint: Checkpointing | None = None,
    progress: Progress = lambda text: None,
) -> Report:
    """Count by key, and give the counting operator these numbers of shards one after the other."""
    records = int(rate * apart_s * (len(steps) + 3))
    with tempfile.TemporaryDirectory(prefix="everstream-scale-") as folder:
        pipeline = Pipeline("scale")
        numbers = pipeline.source(Paced(Range(records), rate=rate), name="numbers")
        counted = numbers.key_by(lambda n: n % KEYS).fold(
            init=int, update=lambda count, _: count + 1, name="count", shards=2
        )
        counted.sink(Times(folder), name="times")
        counted.sink(Collect(), name="collect")
        begun = _Begun()
        run = start(
            pipeline, checkpoint=checkpoint or Coordinated(every="1s"), workers=2, listener=begun
        )
        begun.running.wait(60)
        asked: list[tuple[int, float, float]] = []
        for shards in steps:
            time.sleep(apart_s)
            progress(f"{rate:g} records/s, 'count' gets {shards} shard(s)")
            began_s = time.monotonic()
            run.scale({"count": shards})
            asked.append((shards, began_s, time.monotonic()))
        result = run.wait()
        lines = (line for path in Path(folder).iterdir() for line in path.read_text().split())
        seen = sorted(map(float, lines))
        got = Counter(result.collected())
    totals = Counter(n % KEYS for n in range(records))
    wanted = Counter((key, i + 1) for key, total in totals.items() for i in range(total))
    changes = [
        Change(shards, _longest_pause_s(seen, began_s, done_s + apart_s / 2), done_s - began_s)
        for shards, began_s, done_s in asked
    ]
    figures = [
        *(Figure(f"pause, {c.shards} shard(s)", c.pause_s, "s", at_most(1)) for c in changes),
        *(Figure(f"until at work, {c.shards} shard(s)", c.asked_s, "s") for c in changes),
        *exactness((wanted - got).total(), (got - wanted).total()),
    ]
    return Report("scale", figures, {"rate_per_s": rate})


def _longest_pause_s(seen: list[float], from_s: float, to_s: float) -> float:
    near = [at_s for at_s in seen if from_s <= at_s <= to_s]
    ends = [from_s, *near, to_s]
    return max(later - earlier for earlier, later in pairwise(ends))
