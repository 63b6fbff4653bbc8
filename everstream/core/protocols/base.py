"""What a checkpoint protocol has to answer.

A protocol is asked four things, each with the facts at hand: may this frame be delivered now?
must a checkpoint come first? what rides on an outgoing frame? what does this tick or command ask
for? It answers with values; the shard turns them into instructions. The protocol's variables are
part of every checkpoint and are restored with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Epoch
from everstream.core.messages import StartCheckpoint


class Verdict(Enum):
    """What becomes of the frame at the head of an input."""

    DELIVER = "deliver"
    HOLD = "hold"
    CONSUME = "consume"
    """For the protocol alone: a marker."""


@dataclass(frozen=True)
class TakeCheckpoint:
    number: Epoch
    forced: bool = False
    with_queues: bool = False
    """Also save the frames that wait at the inputs and outputs: they are channel state."""


@dataclass(frozen=True)
class SendMarkers:
    number: Epoch
    overtaking: bool = False
    """Ahead of everything that waits to go out, instead of behind it."""


@dataclass(frozen=True)
class StopProducing:
    """A source gives no more records after the checkpoint it has just been asked for."""


Ask: TypeAlias = TakeCheckpoint | SendMarkers | StopProducing


class ShardProtocol:
    """One shard's side of a protocol. As given here: no checkpoints at all."""

    keeps_positions: ClassVar[bool] = False
    """Channel positions survive a restore, because frames in transit are replayed from logs."""
    logs_frames: ClassVar[bool] = False
    """Every frame sent goes to the sender's log."""

    def __init__(self, inputs: Sequence[ChannelId], outputs: Sequence[ChannelId]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.ended: set[ChannelId] = set()

    def admit(self, frame: Frame) -> Verdict:
        """May the frame at the head of its input be delivered now?"""
        return Verdict.DELIVER

    def checkpoint_first(self, frame: Frame) -> Sequence[Ask]:
        """What must happen before this frame is delivered: a forced checkpoint, or nothing."""
        return ()

    def on_delivered(self, frame: Frame) -> None:
        """The frame is about to reach the operator."""

    def on_consumed(self, frame: Frame) -> Sequence[Ask]:
        """A frame that `admit` said is the protocol's own."""
        return ()

    def on_input_ended(self, channel: ChannelId) -> Sequence[Ask]:
        """Nothing more will come on this input."""
        self.ended.add(channel)
        return ()

    def on_command(self, command: StartCheckpoint) -> Sequence[Ask]:
        """The coordinator asks for a checkpoint. Only sources are told."""
        return ()

    def on_tick(self, now_s: float) -> Sequence[Ask]:
        """Time has passed."""
        return ()

    def piggyback(self, channel: ChannelId) -> bytes:
        """What rides on the next frame sent on this channel."""
        return b""

    def variables(self) -> dict[str, Any]:
        """What must be in the checkpoint; JSON-able."""
        return {}

    def restore(self, variables: dict[str, Any], ended: Sequence[ChannelId]) -> None:
        """Go back to what `variables` gave, with these inputs ended."""
        self.ended = set(ended)


class NoCheckpoints(ShardProtocol):
    """Runs without checkpoints: a failure starts the pipeline over."""
