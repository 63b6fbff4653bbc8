"""Coordinated checkpoints without alignment: nothing waits, and nothing is lost.

As aligned, but an input that has shown its marker is not held. Frames that it delivers before the
other markers have come are in the snapshot and are replayed after a failure: at least once. Without
failures the results are exact.
"""

from collections.abc import Collection, Sequence
from typing import Any

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Epoch
from everstream.core.protocols.aligned import Aligned
from everstream.core.protocols.base import Ask, FrameAction, ShardPosition


class AtLeastOnce(Aligned):
    def __init__(self, place: ShardPosition) -> None:
        super().__init__(place)
        self.newest = Epoch(0)
        """The newest epoch whose marker was seen; epochs before it were aborted."""
        self._ahead: frozenset[ChannelId] = frozenset()

    @property
    def ahead(self) -> Collection[ChannelId]:
        return self._ahead

    def admit(self, frame: Frame) -> FrameAction:
        return FrameAction.CONSUME if frame.kind is FrameKind.MARKER else FrameAction.DELIVER

    def on_consumed(self, frame: Frame) -> Sequence[Ask]:
        epoch = Epoch(frame.number)
        if epoch < self.newest:
            return ()
        if epoch > self.newest:
            self.newest = self.aligning = epoch
            self.shown = set()
        self.shown.add(frame.channel)
        return self._aligned()

    def _aligned(self) -> Sequence[Ask]:
        shown = frozenset(self.shown)
        asks = super()._aligned()
        self._ahead = shown if asks else frozenset()
        return asks

    def restore(self, variables: dict[str, Any], ended: Sequence[ChannelId]) -> None:
        super().restore(variables, ended)
        self.newest = Epoch(0)
