"""What a stream of Spark needs to know: its offsets, as JSON, and what is between two of them."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition


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
