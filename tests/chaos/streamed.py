"""A pipeline fed by a streaming DataFrame, whose driver kills itself where two logs differ.

Spark notes a batch as done once it has been handed over. This driver hands over the second batch,
waits until a manifest has all of its rows, and is gone before Spark can note it.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import everstream as es
from everstream.connectors.spark import sources as stream
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.engine.reporting.listener import Listener
from everstream.engine.spark.context import make_context
from everstream.pipeline.checkpointing import EngineName
from everstream.state.store import CheckpointStore

FILES, ROWS = 4, 25
"""One file to a batch, so many rows in each."""
LAST = 1
"""The batch that Spark does not come to note."""


class Waiting(Listener):
    """Knows when a manifest has the rows of the batches up to the last."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.in_manifest = threading.Event()

    def on_event(self, event: es.RunEvent) -> None:
        if not isinstance(event, es.events.EpochStable):
            return
        newest = CheckpointStore.at(str(self.store)).manifests()[0]
        records = EpochManifest.from_json(newest.body).records.values()
        if sum(record.counts.get("rows", (0, 0))[1] for record in records) >= (LAST + 1) * ROWS:
            self.in_manifest.set()


def write(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        file = folder / f"{number}.json"
        file.write_text("".join(f'{{"n": {number * ROWS + n}}}\n' for n in range(ROWS)))
        os.utime(file, (1e9 + number, 1e9 + number))  # Spark takes files by their age


def run(engine: EngineName, folder: Path, listener: Listener | None = None) -> es.RunResult:
    """Until all files are read; state counts the rows, so that none can be lost or doubled unseen."""
    spark = SparkSession(make_context("local[3]", "streamed"))
    stream = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
    frame = stream.json(str(folder / "in"))
    pipeline = es.Pipeline("streamed")
    rows = pipeline.source(es.SparkStream(frame, available_now=True), name="rows")
    counted = rows.key_by(lambda row: row["n"] % 3).fold(
        init=int, update=lambda count, row: count + 1, name="count"
    )
    counted.collect(name="out")
    return pipeline.run(
        engine=engine,
        spark=spark,
        store=folder / "store",
        checkpoint=es.Coordinated(every="100ms"),
        listener=listener or Listener(),
        progress=False,
    )


def main(engine: EngineName, folder: Path) -> None:
    waiting = Waiting(folder / "store")
    land = stream._Landing._land

    def land_and_die(self: stream._Landing, rows: DataFrame, number: int) -> None:
        land(self, rows, number)
        if number == LAST:
            waiting.in_manifest.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    stream._Landing._land = land_and_die  # type: ignore[method-assign]
    run(engine, folder, waiting)


if __name__ == "__main__":
    main("microbatch" if sys.argv[1] == "microbatch" else "tasks", Path(sys.argv[2]))
