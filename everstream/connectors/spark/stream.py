"""`SparkStream`: a streaming DataFrame as a source, whatever Spark reads it from.

Shards cannot ask a streaming query for what it gave before a failure. So each of its batches is
written to the store as Parquet, before Spark records that it is done (see `spark/landed.py`). Shards
read these batches in order, and can read them again. If Spark dies before it can record a batch, it
gives the batch a second time; it is already in the store and is skipped. Spark's own checkpoint of
the query is in the store beside the batches, so both are moved, kept and deleted together.
"""

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from everstream.connectors.files.filesystem import filesystem_of, is_local, make_folders
from everstream.connectors.files.parts import owner_of
from everstream.connectors.spark.landed import (
    CAUGHT_UP,
    ENDED,
    FAILED,
    FAILURES_IN_A_ROW,
    JobWatchdog,
    Landed,
    LandedReader,
    StreamOffset,
    batch_in,
    redistribute_landed,
    refuse_signed,
    sign_of,
)
from everstream.errors import ConnectorError, UserError, said
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.source import Reader, Source
from everstream.pipeline.types import Row

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_QUERIES: Final = "org.apache.spark.sql.execution.streaming"


class SparkStream(Source[Row]):
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
    needs_spark = True
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
        self._frame: DataFrame | None = frame
        self._trigger = _trigger(every, available_now)
        self._trusts_unsigned = trust_unsigned
        self._folder: str | None = None
        self._driver = ""
        self._landing: _Landing | None = None
        self._catches_up = False

    def __getstate__(self) -> dict[str, Any]:
        """Workers get the folder; a DataFrame and its query exist only on the driver."""
        return {**self.__dict__, "_frame": None, "_landing": None}

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        if self._frame is None:
            raise UserError(
                "a SparkStream can be started only where it was created: on the driver."
            )
        refuse_signed(store, operator, "SparkStream", self._trusts_unsigned)
        folder = f"{store.rstrip('/')}/sources/{owner_of('', operator).removeprefix('.')}"
        fs, path = filesystem_of(folder)
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
        self._landing = _Landing(self._frame, folder, self._driver)
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
        if self._folder is None:
            raise UserError("SparkStream has not been started: run it in a pipeline.")
        return LandedReader(self._folder, shard, shards, self._driver)

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[StreamOffset]:
        if self._folder is None:
            raise UserError("SparkStream has not been started: run it in a pipeline.")
        return redistribute_landed(Landed(self._folder), offsets, shards)


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
