"""A pipeline of micro-batches on a Spark with a trouble of its own.

Run as a program, because settings of Spark hold for a process: what came out is written to a file.
Where somebody has to wait, it waits for what the trouble must bring about, so none goes by unnoticed.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

import everstream as es
from tests.microbatch.pipelines import RECORDS, SMALL

PATIENCE_S = 120.0
TWINS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.efficiency.enabled": "false",
}
COMING_AND_GOING = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.executor.cores": "1",
}


def wait_for(file: Path) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not file.exists():
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{file.name} has not happened")
        time.sleep(0.02)


def attempt() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.taskAttemptId()


class Passing(es.Operator):
    """Passes records on; what else it does is the trouble."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, record: int, ctx: es.Context) -> None:
        self.meet(record, ctx)
        ctx.emit(record)

    def meet(self, record: int, ctx: es.Context) -> None:
        """A record comes."""


class Slow(Passing):
    """The first attempt at one record does not go on before there is a second."""

    def meet(self, record: int, ctx: es.Context) -> None:
        if record != RECORDS // 2:
            return
        mine = self.folder / f"attempt-{attempt()}"
        mine.touch()
        try:
            os.link(mine, self.folder / "first")
        except FileExistsError:
            if not mine.samefile(self.folder / "first"):
                mine.replace(self.folder / "twin")
            return
        wait_for(self.folder / "twin")


class Noting(Passing):
    """Notes down which attempt has had a record."""

    def meet(self, record: int, ctx: es.Context) -> None:
        if record % 100 == 0:
            with (self.folder / "reads").open("a") as file:
                file.write(f"{record} {attempt()}\n")


class Sweeping(Passing):
    """Removes all that has been shuffled so far, before those who run after it have read it."""

    def meet(self, record: int, ctx: es.Context) -> None:
        if record < RECORDS // 2 or (self.folder / "swept").exists():
            return
        shuffled = [*(self.folder / "local").glob("**/shuffle_*.data")]
        for file in shuffled:
            file.unlink()
        (self.folder / "swept").write_text(str(len(shuffled)))


class Lingering(Passing):
    """One shard waits until there are more executors, later another until there are fewer."""

    def meet(self, record: int, ctx: es.Context) -> None:
        if ctx.shard == 0:
            wait_for(self.folder / "grown")
        elif record > 0.8 * RECORDS:
            wait_for(self.folder / "shrunk")


def count_executors(spark: SparkSession, folder: Path) -> None:
    """Writes down when a second executor has come, and when one has gone again."""
    jvm: Any = spark.sparkContext._jsc
    while not (folder / "shrunk").exists():
        executors = len(jvm.sc().statusTracker().getExecutorInfos()) - 1
        if executors > 1:
            (folder / "grown").touch()
        elif (folder / "grown").exists() and executors == 1:
            (folder / "shrunk").touch()
        time.sleep(0.05)


def main(trouble: str, folder: Path, master: str) -> None:
    builder: Any = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.task.maxFailures": "100",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(folder / "local"),
        **{"twins": TWINS, "coming-and-going": COMING_AND_GOING}.get(trouble, {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master(master).getOrCreate()
    pipeline = es.Pipeline("troubled")
    numbers: Any = pipeline.source(es.Range(RECORDS, batch=50), name="numbers", shards=2)
    if trouble == "coming-and-going":
        threading.Thread(target=count_executors, args=(spark, folder), daemon=True).start()
        numbers = numbers.process(Lingering(folder), name="linger")
    noted = numbers.process(Noting(folder), name="note").on_demand()
    middle = {"twins": Slow, "lost-files": Sweeping}.get(trouble, Passing)
    passed = noted.process(middle(folder), name="middle", shards=3)
    keyed = passed.key_by(lambda x: x % 7)
    keyed.fold(init=int, update=lambda n, x: n + 1, name="count", shards=2).collect()
    result = pipeline.run(engine="microbatch", spark=spark, checkpoint=SMALL, progress=False)
    (folder / "result").write_text(json.dumps(result.collected()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
