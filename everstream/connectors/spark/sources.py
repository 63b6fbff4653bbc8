"""`SparkDataFrame` and `SparkStream`: rows of Spark as a source, whatever Spark reads them from.

A worker is itself a Spark task and cannot ask Spark to compute a partition for it, and a lineage
with a random or changing step would not give the same rows again. So Spark writes the rows into the
store first, as Parquet, and from then on the source is these files: a run that resumes from a
checkpoint reads the same ones, whatever Spark would give by then.

A DataFrame is written once, before the run begins. This is a normal job, in which Spark recomputes
lost partitions by their lineage and only a batch of rows is in memory. Of a streaming DataFrame each
batch is written before Spark records that it is done (see `spark/landed.py`); shards read these
batches in order. If Spark dies before it can record a batch, it gives the batch a second time; it is
already in the store and is skipped. Spark's own checkpoint of the query is in the store beside the
batches, so both are moved, kept and deleted together.
"""

import logging
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from everstream.connectors.files.filesystem import filesystem_of, is_local, make_folders
from everstream.connectors.files.parquet import ROWS_PER_BATCH, Parquet
from everstream.connectors.files.parts import owner_of
from everstream.connectors.spark.landed import (
    CAUGHT_UP,
    ENDED,
    FAILED,
    FAILURES_IN_A_ROW,
    LANDED,
    JobWatchdog,
    Landed,
    LandedReader,
    StreamOffset,
    batch_in,
    redistribute_landed,
    sign_of,
)
from everstream.errors import ConnectorError, UserError, said
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.source import Reader, Source
from everstream.pipeline.types import Row
from everstream.state.signing import key_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_QUERIES: Final = "org.apache.spark.sql.execution.streaming"


class _SparkSource(Source[Row]):
    """Rows that Spark writes into the store, at `sources/<operator>/`."""

    needs_spark = True

    def __init__(self, frame: "DataFrame", trust_unsigned: bool) -> None:
        self._frame: DataFrame | None = frame
        self._trusts_unsigned = trust_unsigned

    def __getstate__(self) -> dict[str, Any]:
        """Workers get the files; a DataFrame exists only on the driver."""
        return {**self.__dict__, "_frame": None}

    @property
    def _driver_frame(self) -> "DataFrame":
        if self._frame is None:
            raise UserError(
                f"a {type(self).__name__} can be started only where it was created: on the driver."
            )
        return self._frame

    def _started(self, files: Any) -> Any:
        """What `before_run` has made; raises if it has not been called."""
        if files is None:
            raise UserError(f"{type(self).__name__} has not been started: run it in a pipeline.")
        return files

    def _folder_in(self, store: str, operator: str) -> tuple[str, Any, str]:
        """The folder for the rows, its filesystem and path; refuses a store that Spark cannot sign."""
        if key_of(store) is not None and not self._trusts_unsigned:
            source = type(self).__name__
            raise UserError(
                f"operator '{operator}': {source} keeps its rows in the store, where Spark writes "
                "them without a signature, but this store is signed: anyone who can write there "
                f"could change them. Use {source}(..., trust_unsigned=True) if no one else can, or "
                "use a store without a key."
            )
        folder = f"{store.rstrip('/')}/sources/{owner_of('', operator).removeprefix('.')}"
        return folder, *filesystem_of(folder)


class SparkDataFrame(_SparkSource):
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

    def __init__(
        self, frame: "DataFrame", *, batch_rows: int = ROWS_PER_BATCH, trust_unsigned: bool = False
    ) -> None:
        if not callable(getattr(frame, "toArrow", None)):
            raise UserError(
                f"SparkDataFrame needs a Spark DataFrame, not {type(frame).__name__}. For one of "
                "Polars use FromFunction(lambda start, stop: frame[start:stop], total=len(frame))."
            )
        super().__init__(frame, trust_unsigned)
        self._batch_rows = batch_rows
        self._files: Parquet | None = None

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        folder, fs, path = self._folder_in(store, operator)
        if is_local(fs):  # Spark follows the umask, but this folder denies access to others
            make_folders(fs, os.path.dirname(path), filesystem_of(store)[1])
        if resuming and not fs.exists(f"{path}/{LANDED}"):
            raise ConnectorError(
                f"the rows of the Spark DataFrame are no longer in '{folder}'. Restore the folder, "
                "or start over with --fresh, which deletes the output."
            )
        if not resuming:
            self._write(f"file://{path}" if is_local(fs) else folder)
        self._files = Parquet(folder, schema=None, batch_rows=self._batch_rows)
        self._files.check()

    def open(self, shard: int, shards: int) -> Reader:
        files: Parquet = self._started(self._files)
        return files.open(shard, shards)

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[Any]:
        files: Parquet = self._started(self._files)
        return files.redistribute(offsets, shards)

    def stopping_point(self) -> tuple[tuple[str, int], ...]:
        """The files it was written to: its rows are fixed when the first run begins."""
        return ()

    def _write(self, url: str) -> None:
        frame = self._driver_frame
        context = frame.sparkSession.sparkContext
        group = f"everstream-source-{uuid.uuid4().hex}"
        context.setJobGroup(group, "everstream: write a DataFrame to the store")
        watch = JobWatchdog(context, group)
        watch.start()
        try:
            frame.write.mode("overwrite").parquet(url)
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


class SparkStream(_SparkSource):
    """The rows of a streaming DataFrame of Spark; batches are (Polars) DataFrames.

    Run the pipeline in the session of the DataFrame: `pipeline.run(spark=df.sparkSession)`. Every
    batch of the query is written into the store first, at `sources/<operator>/`, and deleted when
    no checkpoint needs it. The query needs one Spark slot.

    every: how often Spark looks for new rows, such as "1s". Default: right after the last batch.
    available_now: end with the rows that exist when the run begins. Default: False.
    trust_unsigned: use a signed store, although Spark does not sign what it writes there.

    >>> frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    >>> rows = es.Pipeline("stream").source(es.SparkStream(frame, available_now=True))
    >>> result = rows.collect().run(spark=spark)
    >>> sorted(row["value"] for row in result.collected())
    [0, 1, 2]
    """

    own_slots = 1
    exact_batches = True

    def __init__(
        self,
        frame: "DataFrame",
        *,
        every: str | float | None = None,
        available_now: bool = False,
        trust_unsigned: bool = False,
    ) -> None:
        if not getattr(frame, "isStreaming", False):
            raise UserError(
                "SparkStream needs a streaming DataFrame, made by spark.readStream. For any other, "
                "use SparkDataFrame."
            )
        if every is not None and available_now:
            raise UserError("every= is for an endless stream: remove available_now=True.")
        super().__init__(frame, trust_unsigned)
        self._trigger = _trigger(every, available_now)
        self._folder: str | None = None
        self._driver = ""
        self._landing: _Landing | None = None
        self._catches_up = False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_landing": None}

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        frame = self._driver_frame
        folder, fs, path = self._folder_in(store, operator)
        if resuming and not fs.exists(path):
            raise ConnectorError(
                f"the batches of the streaming query are no longer in '{folder}'. Restore the folder, "
                "or start over with --fresh, which deletes the output."
            )
        if not resuming and fs.exists(path):
            fs.rm(path, recursive=True)
        make_folders(fs, path, filesystem_of(store)[1])
        self._folder = folder
        self._driver = uuid.uuid4().hex
        self._landing = _Landing(frame, folder, self._driver)
        if self._catches_up:
            self._landing.start(_trigger(None, True), CAUGHT_UP)
        else:
            self._landing.start(self._trigger, ENDED)

    def stopping_point(self) -> str:
        """What Spark's Trigger.AvailableNow reads: Spark decides it when the query starts."""
        self._catches_up = True
        return "available now"

    def after_run(self) -> None:
        if self._landing is not None:
            self._landing.stop()
            self._landing = None

    def open(self, shard: int, shards: int) -> Reader:
        return LandedReader(self._started(self._folder), shard, shards, self._driver)

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[StreamOffset]:
        return redistribute_landed(Landed(self._started(self._folder)), offsets, shards)


def _trigger(every: str | float | None, available_now: bool) -> dict[str, Any]:
    if available_now:
        return {"availableNow": True}
    if every is None:
        return {}
    return {"processingTime": f"{round(seconds(every) * 1000)} milliseconds"}


class _Refused(Exception):
    """The run has ended: this batch is for the next one."""


class _Landing:
    """The streaming query on the driver, whose batches are written to the store."""

    def __init__(self, frame: "DataFrame", folder: str, driver: str) -> None:
        self._frame = frame
        self._driver = driver
        self._fs, self._path = filesystem_of(folder)
        self._landed = Landed(folder)
        self._url = f"file://{self._path}" if is_local(self._fs) else folder
        self._stopping = threading.Event()
        self._at_work = threading.Lock()
        """Held while a batch is written."""
        self._ends_with = ENDED
        self._query: StreamingQuery | None = None
        self._watch: JobWatchdog | None = None
        self._thread = threading.Thread(target=self._wait, name="everstream-stream", daemon=True)

    def start(self, trigger: dict[str, Any], ends_with: str) -> None:
        """ends_with: the file that records the end of the query."""
        self._ends_with = ends_with
        self._landed.remove_signs()
        ended = self._landed.ended()
        if ended is not None:  # for good: shards may have ended with it
            self._write(ENDED, str(ended))
            return
        self._landed.remove_others()
        writer = self._frame.writeStream.foreachBatch(self._land)
        writer = writer.option("checkpointLocation", f"{self._url}/query")
        self._query = (writer.trigger(**trigger) if trigger else writer).start()
        self._watch = JobWatchdog(self._frame.sparkSession.sparkContext, str(self._query.runId))
        self._watch.start()
        self._thread.start()

    def stop(self) -> None:
        """Between two batches: Spark does not support being stopped while a batch is passed over."""
        if self._query is None or self._watch is None:
            return
        with _hushed(self._frame.sparkSession.sparkContext):
            self._stopping.set()
            with self._at_work:
                pass  # the present batch has been written; the next one finds that we stop
            self._query.stop()
            self._thread.join()
        self._watch.end()

    def _land(self, rows: "DataFrame", number: int) -> None:
        with self._at_work:
            if self._stopping.is_set():
                raise _Refused("the run has ended; Spark gives this batch to the next one")
            if self._landed.has(number):
                return
            name = uuid.uuid4().hex
            rows.write.parquet(f"{batch_in(self._url, number)}/{name}")
            if not self._landed.choose(number, name):
                # A driver that has taken over, or has been replaced, was faster.
                self._fs.rm(f"{batch_in(self._path, number)}/{name}", recursive=True)

    def _wait(self) -> None:
        assert self._query is not None and self._watch is not None
        problem = None
        try:
            self._query.awaitTermination()
        except Exception as error:  # Spark raises many types, from Python and from Java
            problem = error
        if self._stopping.is_set():
            return
        if problem is None:
            numbers = [number for number in self._landed.batches() if self._landed.has(number)]
            self._write(self._ends_with, str(max(numbers, default=-1) + 1))
            return
        text = said(problem).strip().splitlines() or [type(problem).__name__]
        hopeless = f"its tasks failed {FAILURES_IN_A_ROW} times"
        self._write(FAILED, hopeless if self._watch.gave_up else text[0])

    def _write(self, name: str, text: str) -> None:
        """Whole, or not at all: shards look for it all the time."""
        path = f"{self._path}/{sign_of(name, self._driver)}"
        self._fs.pipe_file(f"{path}.new", text.encode())
        self._fs.mv(f"{path}.new", path)


@contextmanager
def _hushed(context: "SparkContext") -> Iterator[None]:
    """Refusing a batch is how a query is stopped here, so its error is not logged."""
    from everstream.engine.spark.launcher import silenced

    py4j = logging.getLogger("py4j.clientserver")
    py4j.addFilter(_is_not_a_refusal)
    try:
        with silenced(context, _QUERIES):
            yield
    finally:
        py4j.removeFilter(_is_not_a_refusal)


def _is_not_a_refusal(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], _Refused)
