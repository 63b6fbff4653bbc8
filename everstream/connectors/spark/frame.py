"""`SparkDataFrame`: the rows of a Spark DataFrame as a source.

A worker is itself a Spark task and cannot ask Spark to compute a partition for it, and a lineage
with a random or changing step would not give the same rows again. So the driver has Spark write
the DataFrame into the store once, as Parquet, before the run begins. This is a normal job, in which
Spark recomputes lost partitions by their lineage and only a batch of rows is in memory. From then on
the source is these files. A run that resumes from a checkpoint reads the same files, whatever the
DataFrame would give by then.
"""

import os
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everstream.connectors.files.filesystem import filesystem_of, is_local, make_folders
from everstream.connectors.files.parquet import ROWS_PER_BATCH, Parquet
from everstream.connectors.files.parts import owner_of
from everstream.connectors.spark.landed import FAILURES_IN_A_ROW, JobWatchdog, refuse_signed
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.source import Reader, Source
from everstream.pipeline.types import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DONE = "_SUCCESS"
"""Spark writes this file when all others are complete."""


class SparkDataFrame(Source[Row]):
    """The rows of a Spark DataFrame; batches are (Polars) DataFrames.

    Run the pipeline in the session of the DataFrame: `pipeline.run(spark=df.sparkSession)`. The
    rows are written into the store first, at `sources/<operator>/`; the store must be a folder or
    URL that Spark can write to. Spark does not sign what it writes: to use a signed store, give
    `trust_unsigned=True`.

    >>> frame = spark.range(3)
    >>> rows = es.Pipeline("from-spark").source(es.SparkDataFrame(frame))
    >>> result = rows.collect().run(spark=spark)
    >>> sorted(row["id"] for row in result.collected())
    [0, 1, 2]
    """

    needs_spark = True

    def __init__(
        self, frame: "DataFrame", *, batch_rows: int = ROWS_PER_BATCH, trust_unsigned: bool = False
    ) -> None:
        if not callable(getattr(frame, "toArrow", None)):
            raise UserError(
                f"SparkDataFrame needs a Spark DataFrame, not {type(frame).__name__}. For one of "
                "Polars use FromFunction(lambda start, stop: frame[start:stop], total=len(frame))."
            )
        self._frame: DataFrame | None = frame
        self._batch_rows = batch_rows
        self._trusts_unsigned = trust_unsigned
        self._files: Parquet | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers get the files; a DataFrame exists only on the driver."""
        return {**self.__dict__, "_frame": None}

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        refuse_signed(store, operator, "SparkDataFrame", self._trusts_unsigned)
        name = owner_of("", operator).removeprefix(".")
        folder = f"{store.rstrip('/')}/sources/{name}"
        fs, path = filesystem_of(folder)
        if is_local(fs):  # Spark follows the umask, but this folder denies access to others
            make_folders(fs, os.path.dirname(path), filesystem_of(store)[1])
        written = fs.exists(f"{path}/{DONE}")
        if resuming and not written:
            raise ConnectorError(
                f"the rows of the Spark DataFrame are no longer in '{folder}'. Restore the folder, "
                "or start over with --fresh, which deletes the output."
            )
        if not resuming:
            self._write(f"file://{path}" if is_local(fs) else folder)
        self._files = Parquet(folder, schema=None, batch_rows=self._batch_rows)
        self._files.check()

    def open(self, shard: int, shards: int) -> Reader:
        if self._files is None:
            raise UserError("SparkDataFrame has not been started: run it in a pipeline.")
        return self._files.open(shard, shards)

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[Any]:
        if self._files is None:
            raise UserError("SparkDataFrame has not been started: run it in a pipeline.")
        return self._files.redistribute(offsets, shards)

    def stopping_point(self) -> tuple[tuple[str, int], ...]:
        """The files it was written to: its rows are fixed when the first run begins."""
        return ()

    def _write(self, url: str) -> None:
        if self._frame is None:
            raise UserError(
                "a SparkDataFrame can be started only where it was created: on the driver."
            )
        context = self._frame.sparkSession.sparkContext
        group = f"everstream-source-{uuid.uuid4().hex}"
        context.setJobGroup(group, "everstream: write a DataFrame to the store")
        watch = JobWatchdog(context, group)
        watch.start()
        try:
            self._frame.write.mode("overwrite").parquet(url)
        except Exception as error:  # Spark raises many kinds, from Python and from Java
            text = str(error).strip().splitlines() or [type(error).__name__]
            problem = f"its tasks failed {FAILURES_IN_A_ROW} times" if watch.gave_up else text[0]
            raise ConnectorError(
                f"Spark could not write the DataFrame to '{url}': {problem}. Check that the "
                "DataFrame can be computed, for example with .count(), and that Spark can write "
                "to the store."
            ) from error
        finally:
            watch.end()
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
            context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
