"""A stream for Spark 4.2 and newer, which pass the offset to start from."""

from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from everstream.inspection.datasource.stream_before_42 import EarlierOutputStream


class OutputStream(EarlierOutputStream, SupportsTriggerAvailableNow):
    """Committed output, or a topic, as it comes."""

    def prepareForTriggerAvailableNow(self) -> None:
        self._offsets.end_here()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]
        return self._offsets.latest(start)
