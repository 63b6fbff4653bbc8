"""The same work as native Structured Streaming does it with state in Python.

There are two ways: `applyInPandasWithState`, and the newer `transformWithState`.

Input lies ready in Parquet files, one per trigger, and output is only counted, which is less than
our own engines have to do. The first triggers warm up and do not count. Where the rows that came
out are not as many as they must be, the measurement fails.
"""

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from everstream.engine.spark.context import make_context
from everstream.errors import RunFailed, UserError
from everstream_lab.bench.throughput import SECOND_US
from everstream_lab.bench.workloads.steady_bids import SteadyBids
from everstream_lab.bench.workloads.words import Words

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

TRIGGERS = 5
WARM_TRIGGERS = 2
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "0",
}
_SEEN = "seen"


@dataclass
class Query(ABC):
    """One query, with this many records in each trigger."""

    per_trigger: int
    schema: ClassVar[str]
    way: ClassVar[str] = "applyInPandasWithState"
    settings: ClassVar[dict[str, str]] = {}

    @property
    def records(self) -> int:
        return self.per_trigger * TRIGGERS

    @abstractmethod
    def frames(self) -> Iterator[pl.DataFrame]:
        """The input of each trigger."""

    @abstractmethod
    def ask(self, stream: DataFrame) -> DataFrame:
        """The query over its input."""

    @abstractmethod
    def expected(self) -> int:
        """The sum of all counts that come out."""

    def _parts(self, make: Any) -> Iterator[pl.DataFrame]:
        for start in range(0, self.records, self.per_trigger):
            yield make(start, start + self.per_trigger)


@dataclass
class NativeWordCount(Query):
    """Every word goes out again with how often it has come so far."""

    schema: ClassVar[str] = "word string"

    @property
    def words(self) -> Words:
        return Words(total=self.records, vocabulary=10_000, timed=False)

    def frames(self) -> Iterator[pl.DataFrame]:
        return self._parts(self.words.words)

    def ask(self, stream: DataFrame) -> DataFrame:
        counts = stream.groupBy("word").applyInPandasWithState(
            count_words,
            "word string, count long",
            "had long",
            "append",
            GroupStateTimeout.NoTimeout,
        )
        return counts.select("count")

    def expected(self) -> int:
        counts = pl.concat(list(self.frames())).group_by("word").len()["len"].cast(pl.Int64)
        return int((counts * (counts + 1) // 2).sum())


def count_words(key: Any, parts: Iterator[Any], state: "GroupState") -> Iterator[Any]:
    """Of one word: all that came in this trigger."""
    had = state.get[0] if state.exists else 0
    new = sum(map(len, parts))
    state.update((had + new,))
    yield pd.DataFrame({"word": key[0], "count": np.arange(had + 1, had + new + 1)})


class CountWords(StatefulProcessor):
    """The same for `transformWithState`."""

    def init(self, handle: "StatefulProcessorHandle") -> None:
        self._had = handle.getValueState("had", "had long")

    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: "TimerValues"
    ) -> Iterator[Any]:
        had = self._had.get()[0] if self._had.exists() else 0  # type: ignore[index]
        new = sum(map(len, rows))
        self._had.update((had + new,))
        yield pd.DataFrame({"word": key[0], "count": np.arange(had + 1, had + new + 1)})

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class TransformedWordCount(NativeWordCount):
    """The same answer in the newer way."""

    way: ClassVar[str] = "transformWithState"
    settings: ClassVar[dict[str, str]] = {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        )
    }

    def ask(self, stream: DataFrame) -> DataFrame:
        import_module("google.protobuf")  # where it is missing, Spark does not say so
        counts = stream.groupBy("word").transformWithStateInPandas(
            CountWords(), "word string, count long", "Append", "None"
        )
        return counts.select("count")


@dataclass
class NativeWindowedCount(Query):
    """Bids per auction and second of event time."""

    schema: ClassVar[str] = "auction long, bidder long, price long, time long"

    def __post_init__(self) -> None:
        if SECOND_US % self.per_trigger:
            raise UserError(
                f"{self.per_trigger} bids do not fill a second in whole microseconds: say a number "
                "that divides a million, such as 250000."
            )

    @property
    def bids(self) -> SteadyBids:
        # Every trigger brings whole seconds.
        return SteadyBids(self.records, auctions=1_000, bids_per_s=float(self.per_trigger))

    def frames(self) -> Iterator[pl.DataFrame]:
        # Spark's watermark begins at 0, and a row that is not above it is late: nothing is at time 0.
        for frame in self._parts(self.bids.bids):
            yield frame.with_columns(pl.col("time") + SECOND_US)

    def ask(self, stream: DataFrame) -> DataFrame:
        timed = stream.withColumn("at", F.timestamp_micros("time")).withWatermark("at", "0 seconds")
        second = timed.withColumn("second", F.floor(F.col("time") / SECOND_US))
        counts = second.groupBy("auction", "second").applyInPandasWithState(
            count_bids,
            "auction long, count long",
            "had long",
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
        return counts.select("count")

    def expected(self) -> int:
        # A window fires in the trigger after that which brought a later time.
        return self.per_trigger * (TRIGGERS - 2)


def count_bids(key: Any, parts: Iterator[Any], state: "GroupState") -> Iterator[Any]:
    """Of one auction and window: what came in this trigger, or that its time has passed."""
    if state.hasTimedOut:
        (had,) = state.get
        state.remove()
        yield pd.DataFrame({"auction": [key[0]], "count": [had]})
        return
    had = state.get[0] if state.exists else 0
    state.update((had + sum(map(len, parts)),))
    state.setTimeoutTimestamp(1000 * (int(key[1]) + 1))


def measure(query: Query, master: str) -> float:
    """Records per second, of the triggers that count."""
    session = SparkSession(make_context(master, "everstream bench")).newSession()
    for name, value in {**SETTINGS, **query.settings}.items():
        session.conf.set(name, value)
    with tempfile.TemporaryDirectory(prefix="everstream-native-") as folder:
        return _measure(query, session, Path(folder))


def _measure(query: Query, session: SparkSession, folder: Path) -> float:
    (folder / "in").mkdir()
    for number, frame in enumerate(query.frames()):
        file = folder / "in" / f"{number:04d}.parquet"
        frame.write_parquet(file)
        os.utime(file, (number, number))  # Spark takes files by their age
    reader = session.readStream.schema(query.schema).option("maxFilesPerTrigger", 1)
    asked = query.ask(reader.parquet(str(folder / "in")))
    writer = asked.observe(_SEEN, F.sum("count").alias("sum")).writeStream.format("noop")
    started = writer.option("checkpointLocation", str(folder / "checkpoint"))
    running = started.trigger(availableNow=True).outputMode("append").start()
    running.awaitTermination()
    triggers: list[Any] = [one for one in running.recentProgress if one["numInputRows"]]
    seen = sum(one["observedMetrics"][_SEEN]["sum"] or 0 for one in running.recentProgress)
    if len(triggers) != TRIGGERS or seen != query.expected():
        raise RunFailed(
            f"native {type(query).__name__}: the counts of {len(triggers)} triggers add up to {seen} "
            f"where {query.expected()} was expected"
        )
    counting = triggers[WARM_TRIGGERS:]
    took_ms: float = sum(one["durationMs"]["triggerExecution"] for one in counting)
    rows: int = sum(one["numInputRows"] for one in counting)
    return 1000 * rows / took_ms
