"""What a source, and its reader, share with the one they wrap: all but how records are given."""

from collections.abc import Callable, Mapping

from everstream.pipeline.rejects import Rejected
from everstream.pipeline.source import LoadSeen, Reader, Source
from everstream.pipeline.types import T


class Wrapping(Source[T]):
    """Passes on what `source` says of itself; how it is opened is the wrapping one's own."""

    def __init__(self, source: Source[T]) -> None:
        self._source = source
        self.max_shards = source.max_shards
        self.on_error = source.on_error

    def total_records(self) -> int | None:
        return self._source.total_records()

    def tunable(self) -> dict[str, str]:
        return self._source.tunable()

    def check(self) -> None:
        self._source.check()

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        self._source.before_run(pipeline, operator, store, resuming)

    def waits_for(self) -> str | None:
        return self._source.waits_for()


class WrappingReader(Reader):
    """Passes on what `inner` is told and says; offsets, and what is read, are the wrapping one's own."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner

    def fence(self, generation: int) -> None:
        self._inner.fence(generation)

    def keep_time(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        self._inner.keep_time(wall_s, steady_s)

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
