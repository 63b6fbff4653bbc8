"""An epoch as one Spark job: a stage for each level, a shuffle between two of them."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import cloudpickle
from pyspark import SparkContext
from pyspark.errors import PySparkException

from everstream.engine.microbatch.epochs import JobLost
from everstream.engine.microbatch.kills import Death
from everstream.engine.microbatch.layout import Layout
from everstream.engine.microbatch.lineage import LineageMaker
from everstream.engine.microbatch.midst import seeing_the_midst
from everstream.engine.microbatch.orders import Order, ShardReport
from everstream.engine.microbatch.rows import Row, report_in
from everstream.engine.microbatch.spark_task import Arriving, Ending, Leaving, StageTask, Starting
from everstream.engine.spark.context import slots_of_an_executor
from everstream.engine.spark.launcher import rows_of
from everstream.engine.spark.lost import NO_ANSWER, is_gone, noticing_the_end
from everstream.errors import EnvironmentFault, RunFailed


class SparkJobs:
    """Runs epochs on Spark."""

    def __init__(
        self,
        context: SparkContext,
        layout: Layout,
        store_url: str,
        key_file: str | None,
        group: str,
        max_retries: int,
        deaths: Callable[[], tuple[Death, ...]],
        on_reports: Callable[[list[ShardReport]], None],
        in_midst: Callable[[], None] | None = None,
    ) -> None:
        """in_midst: called when some tasks of an epoch are done and others are not."""
        self._context = context
        self._layout = layout
        self._store_url = store_url
        self._key_file = key_file
        self._group = group
        self._max_retries = max_retries
        self._deaths = deaths
        self._on_reports = on_reports
        self._in_midst = in_midst
        self._plan = context.broadcast(cloudpickle.dumps(layout.plan))
        self._path = [path for path in sys.path if path and os.path.isdir(path)]
        widths = [len(shards) for shards in layout.levels]
        self._maker = LineageMaker(context, widths, slots_of_an_executor(context), self._plan)

    def run(self, order: Order) -> list[ShardReport]:
        with noticing_the_end(self._context):
            self._context.setJobGroup(self._group, self._description(order), True)
        try:
            with seeing_the_midst(self._context, self._group, self._in_midst):
                served = self._maker.collected(self._lineage(order))
                rows: list[Row] = rows_of(served, Arriving())
        except Exception as error:  # PySpark fails in many ways when Spark is gone
            if is_gone(self._context):
                cause = EnvironmentFault(str(error))
                raise RunFailed("Spark ended before the pipeline did", cause) from error
            if isinstance(error, (PySparkException, *NO_ANSWER)):
                raise JobLost(_cause(error)) from error
            raise
        reports: list[ShardReport] = [report_in(row) for row in rows]
        self._on_reports(reports)
        return reports

    def cancel(self) -> None:
        """Cancel the current job."""
        with suppress(*NO_ANSWER):  # Spark is gone, and its job with it
            self._context.cancelJobGroup(self._group)

    def close(self) -> None:
        with suppress(Exception):  # Spark itself may be gone; then there is nothing to free
            self._maker.name_stage(None)
            self._plan.destroy()

    def _lineage(self, order: Order) -> Any:
        """The last stage, which depends on all others."""
        maker, levels, deaths = self._maker, self._layout.levels, self._deaths()
        coming = maker.start
        for level in range(len(levels)):
            last = level == len(levels) - 1
            maker.name_stage(_listed(self._layout.chains_at(level)))
            stage = StageTask(
                level,
                order,
                self._plan,
                self._store_url,
                self._key_file,
                deaths,
                self._path,
                self._max_retries,
            )
            rows_in = Arriving() if level else Starting()
            command = (stage, None, rows_in, Ending() if last else Leaving())
            coming = maker.in_workers(coming, command, level)
            if not last:
                coming = maker.shuffled(coming, level + 1)
        return coming

    def _description(self, order: Order) -> str:
        """The description on Spark's pages."""
        name = self._layout.plan.graph.name
        if order.closing:
            return f"everstream {name}: the end"
        stages = [
            _listed(self._layout.chains_at(level)) for level in range(len(self._layout.levels))
        ]
        return f"everstream {name}: epoch {order.epoch}: {' → '.join(stages)}"


def _listed(names: Iterable[str]) -> str:
    return " + ".join(names)


def _cause(error: Exception) -> str:
    """The line with the cause, of the many that come with it."""
    lines = str(error).strip().splitlines() or [repr(error)]
    telling = [line for line in lines if "Exception" in line or "Error" in line]
    return f"the Spark job failed: {(telling or lines)[0]}"
