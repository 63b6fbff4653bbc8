"""What a reader shares with the one it wraps: all but how records are given."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from everstream.pipeline.rejects import Rejected
from everstream.pipeline.source import LoadSeen, Reader
from everstream.pipeline.times import NO_WATERMARK


class WrappingReader(Reader):
    """Passes on what `inner` is told and says; what is read, and when, is the wrapping one's own."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner
        self._promised = NO_WATERMARK

    @abstractmethod
    def inner_offset(self, offset: Any) -> Any:
        """Where `inner` has to stand for this one to stand at its `offset`."""

    @property
    @abstractmethod
    def holds(self) -> bool:
        """Whether records that `inner` has given still wait here."""

    def seek(self, offset: Any) -> None:
        self._inner.seek(self.inner_offset(offset))
        self._promised = NO_WATERMARK

    def stable(self, offset: Any) -> None:
        self._inner.stable(self.inner_offset(offset))

    def forget(self, offset: Any) -> None:
        self._inner.forget(self.inner_offset(offset))

    def watermark(self) -> int:
        """What `inner` promises counts only when all it has given was passed on."""
        if not self.holds:
            self._promised = self._inner.watermark()
        return self._promised

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
