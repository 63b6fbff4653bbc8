"""Coordinated, unaligned checkpoints: the marker overtakes the frames, and no input ever waits.

The first marker n to arrive, on any input, asks for the snapshot at once, and marker n goes out
ahead of everything that waits to go out. The frames it overtook are channel state: those that
wait at the outputs and inputs, and those that still arrive on other inputs before their own
marker n. The shard is done with epoch n when every input has shown marker n or ended. Nothing is
held, so feedback edges work.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, CheckpointNumber, Epoch
from everstream.core.messages import StartCheckpoint
from everstream.core.protocols.base import (
    Ask,
    CloseCheckpoint,
    SendMarkers,
    ShardPosition,
    ShardProtocol,
    StopProducing,
    TakeCheckpoint,
)


class Unaligned(ShardProtocol):
    consumes_markers_on_arrival: ClassVar[bool] = True

    def __init__(self, place: ShardPosition) -> None:
        super().__init__(place)
        self.epoch = Epoch(0)
        """The newest epoch this shard has taken part in."""
        self.open = False
        """Its channel state is still being recorded."""
        self.shown: set[ChannelId] = set()
        self.arrived_ends: set[ChannelId] = set()
        """Inputs whose end has arrived, delivered or not: no marker will follow."""

    @property
    def recorded(self) -> Sequence[ChannelId]:
        """The inputs whose arriving frames belong to the open checkpoint."""
        if not self.open:
            return ()
        return [c for c in self.inputs if c not in self.shown and c not in self.arrived_ends]

    @property
    def awaits_markers(self) -> bool:
        return self.open

    def on_arrival(self, frame: Frame) -> Sequence[Ask]:
        if frame.kind is FrameKind.END:
            self.arrived_ends.add(frame.channel)
            return self._close_if_complete()
        if frame.kind is not FrameKind.MARKER or frame.number < self.epoch:
            return ()
        asks: list[Ask] = []
        if frame.number > self.epoch:
            asks += self._begin(Epoch(frame.number))
        self.shown.add(frame.channel)
        return [*asks, *self._close_if_complete()]

    def on_command(self, command: StartCheckpoint) -> Sequence[Ask]:
        asks = [*self._begin(command.epoch), *self._close_if_complete()]
        return [*asks, StopProducing()] if command.stop else asks

    def on_input_ended(self, channel: ChannelId) -> Sequence[Ask]:
        self.ended.add(channel)
        self.arrived_ends.add(channel)
        return self._close_if_complete()

    def restore(self, variables: dict[str, Any], ended: Sequence[ChannelId]) -> None:
        super().restore(variables, ended)
        self.epoch = Epoch(0)
        self.open = False
        self.shown = set()
        self.arrived_ends = set(ended)

    def _begin(self, epoch: Epoch) -> Sequence[Ask]:
        """Snapshot now. An epoch that is still open here was aborted by the coordinator."""
        self.epoch = epoch
        self.open = True
        self.shown = set()
        return [
            TakeCheckpoint(CheckpointNumber(epoch), queues="both"),
            SendMarkers(epoch, overtaking=True),
        ]

    def _close_if_complete(self) -> Sequence[Ask]:
        if not self.open or self.recorded:
            return ()
        self.open = False
        return [CloseCheckpoint(CheckpointNumber(self.epoch))]
