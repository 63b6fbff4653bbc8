"""`SparkStream`: a streaming DataFrame as a source, whatever Spark reads it from.

Shards cannot ask a streaming query for what it gave before a failure. So each of its batches lands
in the store as Parquet, under its number, before Spark notes that it is done; shards read what has
landed, in order, and can read it again. A batch that Spark gives a second time, because it died
before it could note the first, has landed already and is skipped. Spark's own checkpoint of the
query lies in the store beside the batches, so both are moved, kept and deleted together.
"""

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa
from pyarrow import parquet

from everstream.connectors.files import filesystem_of, is_local, make_folders, names_in
from everstream.connectors.parts import owner_of
from everstream.connectors.spark_watch import FAILURES_IN_A_ROW, Watch
from everstream.errors import ConnectorError, UserError, said
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.types import Row

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

LANDED: Final = "_SUCCESS"
"""Spark writes this file when all others of a batch are whole."""
ENDED: Final = "ended"
"""Says how many batches there were, once there will be no more."""
FAILED: Final = "failed"
"""Says why the query has ended before its time."""
LOOK_EVERY_S: Final = 0.05
_QUERIES: Final = "org.apache.spark.sql.execution.streaming"
_PART = re.compile(r"part-(\d+)-.*\.parquet")


class SparkStream(Source[Row]):
    """The rows of a streaming DataFrame of Spark; batches are (Polars) DataFrames.

    Run the pipeline in the session of the DataFrame: `pipeline.run(spark=df.sparkSession)`. Every
    batch of the query is written into the store first, at `sources/<operator>/`, and deleted when
    no checkpoint needs it. The query needs a slot of its own.

    every: how often Spark looks for new rows, "1s"; at once after the batch before, if not given.
    available_now: end with what is there when the run begins.

    >>> frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    >>> rows = es.Pipeline("stream").source(es.SparkStream(frame, available_now=True))
    >>> result = rows.collect().run(spark=spark)
    >>> sorted(row["value"] for row in result.collected())
    [0, 1, 2]
    """

    own_slots = 1
    exact_batches = True

    def __init__(
        self, frame: "DataFrame", *, every: str | float | None = None, available_now: bool = False
    ) -> None:
        if not getattr(frame, "isStreaming", False):
            raise UserError(
                "SparkStream takes a streaming DataFrame, made by spark.readStream. For one that is "
                "not, use SparkDataFrame."
            )
        if every is not None and available_now:
            raise UserError("every= is for a stream that goes on: leave out available_now=True.")
        self._frame: DataFrame | None = frame
        self._trigger = _trigger(every, available_now)
        self._folder: str | None = None
        self._landing: _Landing | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Hosts get the folder; a DataFrame and its query live only on the driver."""
        return {**self.__dict__, "_frame": None, "_landing": None}

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        if self._frame is None:
            raise UserError("a SparkStream can be started only where it was made: on the driver.")
        folder = f"{store.rstrip('/')}/sources/{owner_of('', operator).removeprefix('.')}"
        fs, path = filesystem_of(folder)
        if resuming and not fs.exists(path):
            raise ConnectorError(
                f"what the streaming query had given is no longer in '{folder}'. Put the folder "
                "back, or start over with --fresh, which deletes the output."
            )
        if not resuming and fs.exists(path):
            fs.rm(path, recursive=True)
        make_folders(fs, path, filesystem_of(store)[1])
        self._folder = folder
        self._landing = _Landing(self._frame, folder)
        self._landing.start(self._trigger)

    def after_run(self) -> None:
        if self._landing is not None:
            self._landing.stop()
            self._landing = None

    def open(self, shard: int, shards: int) -> Reader:
        if self._folder is None:
            raise UserError("SparkStream has not been started: run it in a pipeline.")
        return _LandedReader(self._folder, shard, shards)


def _trigger(every: str | float | None, available_now: bool) -> dict[str, Any]:
    if available_now:
        return {"availableNow": True}
    if every is None:
        return {}
    return {"processingTime": f"{round(seconds(every) * 1000)} milliseconds"}


class _Refused(Exception):
    """The run is over: this batch is for the next one."""


class _Landing:
    """The streaming query on the driver, whose batches land in the store."""

    def __init__(self, frame: "DataFrame", folder: str) -> None:
        self._frame = frame
        self._fs, self._path = filesystem_of(folder)
        self._url = f"file://{self._path}" if is_local(self._fs) else folder
        self._stopping = threading.Event()
        self._at_work = threading.Lock()
        """Held while a batch lands."""
        self._query: StreamingQuery | None = None
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._wait, name="everstream-stream", daemon=True)

    def start(self, trigger: dict[str, Any]) -> None:
        if self._fs.exists(f"{self._path}/{FAILED}"):
            self._fs.rm(f"{self._path}/{FAILED}")
        if self._fs.exists(f"{self._path}/{ENDED}"):
            return  # for good: shards may have ended with it
        writer = self._frame.writeStream.foreachBatch(self._land)
        writer = writer.option("checkpointLocation", f"{self._url}/query")
        self._query = (writer.trigger(**trigger) if trigger else writer).start()
        self._watch = Watch(self._frame.sparkSession.sparkContext, str(self._query.runId))
        self._watch.start()
        self._thread.start()

    def stop(self) -> None:
        """Between two batches: Spark does not bear being stopped while a batch is handed over."""
        if self._query is None or self._watch is None:
            return
        with _hushed(self._frame.sparkSession.sparkContext):
            self._stopping.set()
            with self._at_work:
                pass  # the batch that was landing has landed; the next one finds that we stop
            self._query.stop()
            self._thread.join()
        self._watch.end()

    def _land(self, rows: "DataFrame", number: int) -> None:
        with self._at_work:
            if self._stopping.is_set():
                raise _Refused("the run is over; Spark gives this batch to the next one")
            if not self._fs.exists(f"{_batch(self._path, number)}/{LANDED}"):
                rows.write.mode("overwrite").parquet(_batch(self._url, number))

    def _wait(self) -> None:
        assert self._query is not None and self._watch is not None
        problem = None
        try:
            self._query.awaitTermination()
        except Exception as error:  # Spark raises many kinds, from Python and from Java
            problem = error
        if self._stopping.is_set():
            return
        if problem is None:
            landed = len(self._fs.ls(f"{self._path}/batches")) if self._has_batches() else 0
            self._write(ENDED, str(landed))
            return
        text = said(problem).strip().splitlines() or [type(problem).__name__]
        hopeless = f"its tasks failed {FAILURES_IN_A_ROW} times"
        self._write(FAILED, hopeless if self._watch.gave_up else text[0])

    def _has_batches(self) -> bool:
        return bool(self._fs.exists(f"{self._path}/batches"))

    def _write(self, name: str, text: str) -> None:
        """Whole, or not at all: shards look for it all the time."""
        self._fs.pipe_file(f"{self._path}/{name}.new", text.encode())
        self._fs.mv(f"{self._path}/{name}.new", f"{self._path}/{name}")


@contextmanager
def _hushed(context: "SparkContext") -> Iterator[None]:
    """Refusing a batch is how a query is stopped here, and no error that anybody must read of."""
    log4j = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    before = log4j.LogManager.getLogger(_QUERIES).getLevel()
    py4j = logging.getLogger("py4j.clientserver")
    py4j.addFilter(_is_not_a_refusal)
    log4j.core.config.Configurator.setLevel(_QUERIES, log4j.Level.OFF)
    try:
        yield
    finally:
        log4j.core.config.Configurator.setLevel(_QUERIES, before)
        py4j.removeFilter(_is_not_a_refusal)


def _is_not_a_refusal(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], _Refused)


def _batch(path: str, number: int) -> str:
    return f"{path}/batches/{number:08d}"


class _LandedReader(Reader):
    """Reads its share of the batches in order: the files of every so many partitions."""

    def __init__(self, folder: str, shard: int, shards: int) -> None:
        self._fs, self._path = filesystem_of(folder)
        self._shard = shard
        self._shards = shards
        self._at = (0, 0, 0)
        """Batch, file and row group that come next."""
        self._mine: tuple[int, list[str]] | None = None
        self._open: tuple[str, Any, parquet.ParquetFile] | None = None
        self._forgotten = 0

    @property
    def offset(self) -> tuple[int, int, int]:
        return self._at

    def seek(self, offset: tuple[int, int, int]) -> None:
        self._at = offset

    def ready_in_s(self) -> float:
        return LOOK_EVERY_S

    def read(self) -> Batch | EndOfStream | None:
        while True:
            batch, file, group = self._at
            files = self._files(batch)
            if files is None:
                return self._nothing_more(batch)
            if file >= len(files):
                self._at = (batch + 1, 0, 0)
                continue
            rows = self._group(f"{_batch(self._path, batch)}/{files[file]}", group)
            self._at = (batch, file, group + 1) if rows is not None else (batch, file + 1, 0)
            if rows is not None and len(rows):
                return rows

    def forget(self, offset: tuple[int, int, int]) -> None:
        for number in range(self._forgotten, offset[0]):
            for name in self._names(number):
                self._fs.rm(f"{_batch(self._path, number)}/{name}")
        self._forgotten = offset[0]

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _files(self, number: int) -> list[str] | None:
        """This shard's files of a batch; None if it has not landed."""
        if self._mine is None or self._mine[0] != number:
            folder = _batch(self._path, number)
            self._fs.invalidate_cache(folder)
            if not self._fs.exists(f"{folder}/{LANDED}"):
                return None
            self._mine = (number, self._names(number))
        return self._mine[1]

    def _names(self, number: int) -> list[str]:
        found = (
            (name, _PART.fullmatch(name)) for name in names_in(self._fs, _batch(self._path, number))
        )
        return [name for name, part in found if part and int(part[1]) % self._shards == self._shard]

    def _nothing_more(self, batch: int) -> EndOfStream | None:
        """No further batch is there: for now, or for ever."""
        self._fs.invalidate_cache(self._path)
        there = names_in(self._fs, self._path)
        if FAILED in there:
            reason = self._fs.cat_file(f"{self._path}/{FAILED}").decode(errors="replace")
            raise ConnectorError(
                f"the streaming query that feeds this pipeline has failed: {reason}. Mend that "
                "and run again: the next run goes on from the last checkpoint."
            )
        if ENDED in there and batch >= int(self._fs.cat_file(f"{self._path}/{ENDED}")):
            return END
        return None

    def _group(self, path: str, number: int) -> pl.DataFrame | None:
        """A row group; None if the file has no such."""
        try:
            if self._open is None or self._open[0] != path:
                self.close()
                file = self._fs.open(path, "rb")
                self._open = (path, file, parquet.ParquetFile(file))
            whole = self._open[2]
            if number >= whole.metadata.num_row_groups:
                return None
            return pl.DataFrame(pl.from_arrow(whole.read_row_group(number, use_threads=False)))
        except (OSError, pa.ArrowException) as error:
            raise ConnectorError(
                f"cannot read '{os.fspath(path)}', which Spark had written: {error}. Put the file "
                "back from a copy, or start over with --fresh, which deletes the output."
            ) from error
