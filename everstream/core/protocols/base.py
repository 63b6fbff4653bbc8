"""The interface of a checkpoint protocol.

A protocol answers four questions, each with the facts at hand: may this frame be delivered now?
must a checkpoint come first? what rides on an outgoing frame? what does this tick or command ask
for? It answers with values; the shard turns them into instructions. The protocol's variables are
part of every checkpoint and are restored with it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, TypeAlias

from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, CheckpointNumber, Epoch, ShardId
from everstream.core.messages import StartCheckpoint


@dataclass(frozen=True)
class ShardPosition:
    """The position of a protocol's shard in the plan."""

    id: ShardId
    inputs: tuple[ChannelId, ...]
    outputs: tuple[ChannelId, ...]
    cycle: tuple[ShardId, ...] = ()
    """The strongly connected component the shard belongs to; empty if it is on no cycle."""


class FrameAction(Enum):
    """What happens to the frame at the head of an input."""

    DELIVER = "deliver"
    HOLD = "hold"
    CONSUME = "consume"
    """For the protocol alone: a marker."""


Queues: TypeAlias = Literal["none", "outputs", "both"]
"""Which frames belong to a checkpoint: those that wait to go out, and those that have come in."""


@dataclass(frozen=True)
class TakeCheckpoint:
    number: CheckpointNumber
    forced: bool = False
    queues: Queues = "none"
    """With "both" the checkpoint stays open for arriving frames until it is closed."""
    stopped: bool = False
    """The shard stops with this checkpoint."""


@dataclass(frozen=True)
class CloseCheckpoint:
    """Nothing more belongs to the open checkpoint of this number: save it."""

    number: CheckpointNumber


@dataclass(frozen=True)
class SendMarkers:
    epoch: Epoch
    overtaking: bool = False
    """Ahead of everything that waits to go out, instead of behind it."""


@dataclass(frozen=True)
class StopProducing:
    """A source emits no more records after the checkpoint it has just been asked for."""


Ask: TypeAlias = TakeCheckpoint | CloseCheckpoint | SendMarkers | StopProducing
"""Everything a protocol can ask of its shard."""


class ShardProtocol:
    """One shard's side of a protocol. As given here: no checkpoints at all."""

    keeps_positions: ClassVar[bool] = False
    """Channel positions survive a restore, because frames in transit are replayed from logs."""
    consumes_markers_on_arrival: ClassVar[bool] = False
    """Markers are for `on_arrival` alone and never wait in a queue."""
    obeys_everywhere: ClassVar[bool] = False
    """Every shard receives the coordinator's commands, not only the sources."""

    def __init__(self, place: ShardPosition) -> None:
        self.place = place
        self.inputs = place.inputs
        self.ended: set[ChannelId] = set()

    @property
    def recorded(self) -> Sequence[ChannelId]:
        """The inputs whose arriving frames belong to the checkpoint that is open."""
        return ()

    @property
    def awaits_markers(self) -> bool:
        """Some inputs have shown the marker of an epoch, and others have not."""
        return False

    @property
    def ahead(self) -> Collection[ChannelId]:
        """Inputs that have delivered frames that belong after the checkpoint.

        These are replayed after a restore, the end of the input included.
        """
        return ()

    def on_arrival(self, frame: Frame) -> Sequence[Ask]:
        """A frame has come in, however many wait before it."""
        return ()

    def admit(self, frame: Frame) -> FrameAction:
        """May the frame at the head of its input be delivered now?"""
        return FrameAction.DELIVER

    def checkpoint_first(self, frame: Frame) -> Sequence[Ask]:
        """What must happen before this frame is delivered: a forced checkpoint, or nothing."""
        return ()

    def on_delivered(self, frame: Frame) -> None:
        """The frame is about to reach the operator."""

    def on_consumed(self, frame: Frame) -> Sequence[Ask]:
        """A frame that `admit` has claimed for the protocol."""
        return ()

    def on_input_ended(self, channel: ChannelId) -> Sequence[Ask]:
        """Nothing more will come on this input."""
        self.ended.add(channel)
        return ()

    def on_command(self, command: StartCheckpoint) -> Sequence[Ask]:
        """The coordinator asks for a checkpoint. Only sources receive this."""
        return ()

    def on_tick(self, now_s: float, records: int = 0, wish: bool | None = None) -> Sequence[Ask]:
        """Time has passed, and this many records in all.

        wish: of the operators: True to checkpoint now, False to postpone, None for neither.
        """
        return ()

    def set_interval(self, every_s: float) -> None:
        """The time between two checkpoints of a shard's own has changed."""

    def piggyback(self, channel: ChannelId) -> bytes:
        """What rides on the next frame sent on this channel."""
        return b""

    def variables(self) -> dict[str, Any]:
        """The values that must be in the checkpoint; JSON-able."""
        return {}

    def restore(self, variables: dict[str, Any], ended: Sequence[ChannelId]) -> None:
        """Restore the values that `variables` returned, with these inputs ended."""
        self.ended = set(ended)


class NoCheckpoints(ShardProtocol):
    """Runs without checkpoints: a failure starts the pipeline over."""
