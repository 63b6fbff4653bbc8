"""A pipeline of micro-batches on a Spark with a trouble of its own.

Run as a program, because settings of Spark hold for a process: what came out is written to a file.
Where somebody has to wait, it waits for what the trouble must bring about, so none goes by unnoticed.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

import everstream as es
from tests.engine.microbatch.pipelines import RECORDS, SMALL

PATIENCE_S = 120.0
TWINS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.efficiency.enabled": "false",
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


def main(trouble: str, folder: Path, master: str) -> None:
    builder: Any = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.task.maxFailures": "100",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(folder / "local"),
        **(TWINS if trouble == "twins" else {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master(master).getOrCreate()
    pipeline = es.Pipeline("troubled")
    numbers = pipeline.source(es.Range(RECORDS, batch=50), name="numbers", shards=2)
    noted = numbers.process(Noting(folder), name="note").on_demand()
    middle = {"twins": Slow, "lost-files": Sweeping}[trouble]
    passed = noted.process(middle(folder), name="middle", shards=3)
    keyed = passed.key_by(lambda x: x % 7)
    keyed.fold(init=int, update=lambda n, x: n + 1, name="count", shards=2).collect()
    result = pipeline.run(engine="microbatch", spark=spark, checkpoint=SMALL, progress=False)
    (folder / "result").write_text(json.dumps(result.collected()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
