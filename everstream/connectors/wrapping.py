"""What a source and its reader share with the one they wrap: everything but how records are given."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from everstream.pipeline.rejects import Rejected
from everstream.pipeline.source import LoadSeen, Reader, Source
from everstream.pipeline.times import NO_WATERMARK
from everstream.pipeline.types import T


class Wrapping(Source[T]):
    """Delegates everything to `source`, except how it is opened."""

    def __init__(self, source: Source[T]) -> None:
        self._source = source = source.as_source()
        self.max_shards = source.max_shards
        self.on_error = source.on_error
        self.own_slots = source.own_slots
        self.needs_spark = source.needs_spark
        self.event_time = source.event_time
        self.replayable = source.replayable
        self.declared = source.declared

    def total_records(self) -> int | None:
        return self._source.total_records()

    def tunable(self) -> dict[str, str]:
        return self._source.tunable()

    def check(self) -> None:
        self._source.check()

    def describe_offsets(self) -> dict[str, Any]:
        return {**super().describe_offsets(), "of": self._source.describe_offsets()}

    def stopping_point(self) -> Any:
        return self._source.stopping_point()

    def column_names(self) -> list[str] | None:
        return self._source.column_names()

    def column_types(self) -> Mapping[str, Any] | None:
        return self._source.column_types()

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        self._source.before_run(pipeline, operator, store, resuming)

    def waits_for(self) -> str | None:
        return self._source.waits_for()

    def after_run(self) -> None:
        self._source.after_run()


class WrappingReader(Reader):
    """Delegates everything to `inner`, except what is read, and when."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner
        self._promised = NO_WATERMARK

    @abstractmethod
    def inner_offset(self, offset: Any) -> Any:
        """The offset of `inner` for an `offset` of this reader."""

    @property
    @abstractmethod
    def holds(self) -> bool:
        """Whether records of `inner` are still buffered here."""

    def seek(self, offset: Any) -> None:
        self._inner.seek(self.inner_offset(offset))
        self._promised = NO_WATERMARK

    def stable(self, offset: Any) -> None:
        self._inner.stable(self.inner_offset(offset))

    def forget(self, offset: Any) -> None:
        self._inner.forget(self.inner_offset(offset))

    def watermark(self) -> int:
        """The watermark of `inner` counts only when all its records were passed along."""
        if not self.holds:
            self._promised = self._inner.watermark()
        return self._promised

    def fence(self, generation: int) -> None:
        self._inner.fence(generation)

    def drained(self) -> bool:
        return not self.holds and self._inner.drained()

    def slowest_split(self) -> str | None:
        return self._inner.slowest_split()

    def stop_at(self, point: Any) -> None:
        self._inner.stop_at(point)

    def keep_time(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        self._inner.keep_time(wall_s, steady_s)

    def use_store(self, store: str) -> None:
        self._inner.use_store(store)

    def tune(self, settings: Mapping[str, str], version: int) -> None:
        self._inner.tune(settings, version)

    def born_s(self) -> float:
        return self._inner.born_s()

    def load(self) -> LoadSeen:
        return self._inner.load()

    def take_rejected(self) -> list[Rejected]:
        return self._inner.take_rejected()

    def close(self) -> None:
        self._inner.close()
