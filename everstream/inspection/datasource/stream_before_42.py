"""A stream for Spark 4.0 and 4.1, which only ask for the newest offset.

Without the offset to start from, the reader remembers the last one it gave. After a restart of the
query it knows none, so the first batch can be empty. Spark itself fixes the end of a query with the
trigger AvailableNow.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition


class StreamOffsets(Protocol):
    """Implemented by committed output and by topics, for the readers of all versions of Spark."""

    def initial(self) -> dict[str, Any]:
        """The offset before everything."""

    def end_here(self) -> None:
        """From now on the stream ends with what is committed now."""

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """The offset to read to; `start` if nothing was committed since."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What was committed in between."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""


class EarlierOutputStream(DataSourceStreamReader):
    """Committed output, or a topic, as it comes."""

    def __init__(self, offsets: StreamOffsets) -> None:
        self._offsets = offsets
        self._last: dict[str, Any] = offsets.initial()

    def initialOffset(self) -> dict[str, Any]:
        return self._offsets.initial()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        self._last = self._offsets.latest(self._last)
        return self._last

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._offsets.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._offsets.read(partition)
