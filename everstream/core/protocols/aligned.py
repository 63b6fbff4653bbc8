"""Coordinated, aligned checkpoints: the shard's side.

Sources snapshot on the coordinator's command and send marker n. A shard holds every input that
has shown marker n until all have shown it or ended; then it snapshots, forwards the marker and
releases its inputs. Between the marker and the snapshot nothing that belongs after the epoch is
processed, so the snapshots of one epoch fit together without any channel contents.
"""

from collections.abc import Sequence
from typing import Any

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, CheckpointNumber, Epoch
from everstream.core.messages import StartCheckpoint
from everstream.core.protocols.base import (
    Ask,
    FrameAction,
    SendMarkers,
    ShardPosition,
    ShardProtocol,
    StopProducing,
    TakeCheckpoint,
)
from everstream.errors import InternalError


class Aligned(ShardProtocol):
    def __init__(self, place: ShardPosition) -> None:
        super().__init__(place)
        self.aligning: Epoch | None = None
        self.shown: set[ChannelId] = set()
        """Inputs that have shown the marker of the epoch being aligned."""

    @property
    def awaits_markers(self) -> bool:
        return self.aligning is not None

    def admit(self, frame: Frame) -> FrameAction:
        if frame.channel in self.shown:
            return FrameAction.HOLD
        return FrameAction.CONSUME if frame.kind is FrameKind.MARKER else FrameAction.DELIVER

    def on_consumed(self, frame: Frame) -> Sequence[Ask]:
        if self.aligning is None:
            self.aligning = Epoch(frame.number)
        elif self.aligning != frame.number:
            raise InternalError(
                f"marker {frame.number} on {frame.channel} while aligning epoch {self.aligning}"
            )
        self.shown.add(frame.channel)
        return self._aligned()

    def on_input_ended(self, channel: ChannelId) -> Sequence[Ask]:
        self.ended.add(channel)
        return self._aligned()

    def on_command(self, command: StartCheckpoint) -> Sequence[Ask]:
        asks: list[Ask] = [
            TakeCheckpoint(CheckpointNumber(command.epoch)),
            SendMarkers(command.epoch),
        ]
        return [*asks, StopProducing()] if command.stop else asks

    def restore(self, variables: dict[str, Any], ended: Sequence[ChannelId]) -> None:
        super().restore(variables, ended)
        self.aligning = None
        self.shown = set()

    def _aligned(self) -> Sequence[Ask]:
        if self.aligning is None or any(
            channel not in self.shown and channel not in self.ended for channel in self.inputs
        ):
            return ()
        epoch, self.aligning, self.shown = self.aligning, None, set()
        return [TakeCheckpoint(CheckpointNumber(epoch)), SendMarkers(epoch)]
