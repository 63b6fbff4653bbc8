"""What a reader shares with the one it wraps: all but how records are given."""

from collections.abc import Callable, Mapping

from everstream.pipeline.rejects import Rejected
from everstream.pipeline.source import LoadSeen, Reader


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
