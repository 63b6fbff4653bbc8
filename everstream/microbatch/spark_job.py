"""An epoch as one Spark job: a stage for each level, a shuffle between two of them."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from everstream.microbatch.epochs import JobLost
from everstream.microbatch.kills import Death
from everstream.microbatch.layout import Layout
from everstream.microbatch.orders import Order, ShardReport
from everstream.microbatch.rows import Row, report_in
from everstream.microbatch.spark_task import COLUMNS, Stage

SETTINGS = {
    # Stages must stay as they are laid out: a partition is a shard.
    "spark.sql.adaptive.enabled": "false",
    # Nothing is to be read from one stage while another is planned anew.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "0",
}


class SparkJobs:
    """Runs epochs on Spark."""

    def __init__(
        self,
        session: SparkSession,
        layout: Layout,
        store_url: str,
        key_file: str | None,
        group: str,
        max_retries: int,
        deaths: Callable[[], tuple[Death, ...]],
        on_reports: Callable[[list[ShardReport]], None],
    ) -> None:
        self._session = session.newSession()  # so that the settings are nobody else's
        for name, value in SETTINGS.items():
            self._session.conf.set(name, value)
        self._context = session.sparkContext
        self._layout = layout
        self._store_url = store_url
        self._key_file = key_file
        self._group = group
        self._max_retries = max_retries
        self._deaths = deaths
        self._on_reports = on_reports
        self._plan = self._context.broadcast(cloudpickle.dumps(layout.plan))
        self._path = [path for path in sys.path if path and os.path.isdir(path)]

    def run(self, order: Order) -> list[ShardReport]:
        self._context.setJobGroup(self._group, self._description(order), True)
        self._context.setLocalProperty("callSite.short", self._description(order))
        try:
            table = self._frame(order).toArrow()
        except PySparkException as error:
            raise JobLost(_cause(error)) from error
        except Exception as error:
            if type(error).__module__.startswith("py4j"):
                raise JobLost(_cause(error)) from error
            raise
        rows = zip(table.column(1).to_pylist(), table.column(2).to_pylist(), strict=True)
        reports = [report_in(Row(0, header, payload)) for header, payload in rows]
        self._on_reports(reports)
        return reports

    def cancel(self) -> None:
        """End the job under way."""
        self._context.cancelJobGroup(self._group)

    def close(self) -> None:
        with suppress(Exception):  # Spark itself may be gone; then there is nothing to free
            self._context.setLocalProperty("callSite.short", None)  # type: ignore[arg-type]
            self._plan.destroy()

    def _frame(self, order: Order) -> Any:
        levels = self._layout.levels
        deaths = self._deaths()
        frame: Any = self._session.range(0, len(levels[0]), 1, len(levels[0]))
        for level, shards in enumerate(levels):
            if level:
                frame = frame.repartitionById(len(shards), "partition")
            stage = Stage(
                level,
                order,
                self._plan,
                self._store_url,
                self._key_file,
                deaths,
                self._path,
                self._max_retries,
            )
            frame = frame.mapInArrow(stage, COLUMNS)
        return frame

    def _description(self, order: Order) -> str:
        """What Spark's own pages show."""
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
    """The line that says what happened, of the many that come with it."""
    lines = str(error).strip().splitlines() or [repr(error)]
    telling = [line for line in lines if "Exception" in line or "Error" in line]
    return f"the Spark job failed: {(telling or lines)[0]}"
