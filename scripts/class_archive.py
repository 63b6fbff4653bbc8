"""Spark's Java classes as one archive, which Java maps instead of reading and checking each of them.

The tests start Spark by the dozen, and half of what a start costs is that. Java writes the archive
when it ends; one that does not fit the Java or the Spark of the day it leaves alone.

    python scripts/class_archive.py FILE
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

import everstream as es
from everstream.pipeline.checkpointing import EngineName

ENGINES: tuple[EngineName, ...] = ("tasks", "microbatch")
MASTER = "local[2]"


def main() -> None:
    archive = Path(sys.argv[1]).absolute()
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    os.environ["EVERSTREAM_PROGRESS"] = "0"
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={partial} "
        "-Xlog:cds=off -Xlog:cds+dynamic=off"
    )
    with tempfile.TemporaryDirectory() as folder:
        for engine in ENGINES:
            use(engine, f"{folder}/{engine}")
        session = SparkSession.builder.getOrCreate()
        session.range(10).selectExpr("id", "id % 3 as rest").groupBy("rest").count().collect()
    session.stop()
    java = SparkContext._gateway.proc  # type: ignore[union-attr]
    java.stdin.close()
    java.wait()
    partial.rename(archive)


def use(engine: EngineName, store: str) -> None:
    """A small pipeline, so that what a run needs of Spark has been loaded."""
    pipeline = es.Pipeline(engine)
    numbers = pipeline.source(es.Range(100)).key_by(lambda number: number % 3)
    numbers.fold(init=int, update=lambda sum, number: sum + number, shards=2).collect()
    pipeline.run(engine=engine, master=MASTER, store=store)


if __name__ == "__main__":
    main()
