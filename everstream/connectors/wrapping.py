"""What a source shares with the one it wraps: all but how its records are given."""

from typing import Any

from everstream.pipeline.source import Source
from everstream.pipeline.types import T


class Wrapping(Source[T]):
    """Passes on what `source` says of itself; how it is opened is the wrapping one's own."""

    def __init__(self, source: Source[T]) -> None:
        self._source = source
        self.max_shards = source.max_shards
        self.on_error = source.on_error
        self.own_slots = source.own_slots
        self.event_time = source.event_time
        self.replayable = source.replayable

    def total_records(self) -> int | None:
        return self._source.total_records()

    def tunable(self) -> dict[str, str]:
        return self._source.tunable()

    def check(self) -> None:
        self._source.check()

    def describe_offsets(self) -> dict[str, Any]:
        return {**super().describe_offsets(), "of": self._source.describe_offsets()}

    def column_names(self) -> list[str] | None:
        return self._source.column_names()

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        self._source.before_run(pipeline, operator, store, resuming)

    def waits_for(self) -> str | None:
        return self._source.waits_for()

    def after_run(self) -> None:
        self._source.after_run()
