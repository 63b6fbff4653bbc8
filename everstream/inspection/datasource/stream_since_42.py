"""A stream for Spark 4.2 and newer, which pass the offset to start from."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from everstream.inspection.datasource.offsets import StreamOffsets


class OutputStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Committed output, or a topic, as it comes."""

    def __init__(self, offsets: StreamOffsets) -> None:
        self._offsets = offsets

    def initialOffset(self) -> dict[str, Any]:
        return self._offsets.initial()

    def prepareForTriggerAvailableNow(self) -> None:
        self._offsets.end_here()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._offsets.latest(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._offsets.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._offsets.read(partition)
