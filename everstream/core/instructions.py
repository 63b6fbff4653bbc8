"""What a shard instructs its engine to do. Each is a value; the engine performs them in order."""

from dataclasses import dataclass
from typing import TypeAlias

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, CheckpointNumber, Epoch, Generation
from everstream.core.messages import Report
from everstream.core.protocols.base import Queues
from everstream.pipeline.sink import Permit


@dataclass(frozen=True, slots=True)
class LoadState:
    """Set the operators' state to that of these records (none: the empty start)."""

    generation: Generation
    records: tuple[CheckpointRecord, ...]
    permit: Permit
    reason: str = ""
    """What has failed; empty when a run begins."""


@dataclass(frozen=True, slots=True)
class Start:
    """Call on_start and begin."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Pass the frame's batch to the operators, then return one credit to its channel.

    If only a part is delivered, the rest returns to the shard (`on_cut`) to be delivered later.
    """

    frame: Frame
    records: int
    """How many, counted from the frame's `start`."""
    watermark: int | None = None
    """With this frame the lowest watermark of all inputs has reached this time."""


@dataclass(frozen=True, slots=True)
class Advance:
    """The lowest watermark of all inputs has reached this time without a frame of records."""

    watermark: int


@dataclass(frozen=True, slots=True)
class Produce:
    """Continue with the records read from the source, or read the next batch."""

    most: int
    """The most records to take at once."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Capture the state of this instant, then make it durable in the background.

    The record was made when this was decided: later deliveries are not in it.
    """

    record: CheckpointRecord
    queues: Queues = "none"
    """Which waiting frames belong to it; with "both" it stays open for those that arrive."""


@dataclass(frozen=True, slots=True)
class RecordArrival:
    """This frame belongs to the open checkpoint."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class CloseCapture:
    """The open checkpoint of this number is complete: make it durable."""

    number: CheckpointNumber


@dataclass(frozen=True, slots=True)
class Cut:
    """The receivers of these channels roll back: send nothing there until they have."""

    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class EmitMarkers:
    """Send the marker of this epoch on every output, behind (or ahead of) queued frames."""

    epoch: Epoch
    overtaking: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """Let the operators emit their last records, end every output channel, then report that."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Let the sinks commit everything the permit covers."""

    permit: Permit


@dataclass(frozen=True, slots=True)
class Tell:
    """Report to the coordinator."""

    report: Report


@dataclass(frozen=True, slots=True)
class Announce:
    """Call the operators' on_checkpoint hooks: this checkpoint is durable."""

    number: CheckpointNumber


@dataclass(frozen=True, slots=True)
class Close:
    """Call on_stop and release all resources."""


Instruction: TypeAlias = (
    LoadState
    | Start
    | Deliver
    | Advance
    | Produce
    | Capture
    | RecordArrival
    | CloseCapture
    | Cut
    | EmitMarkers
    | Finish
    | Commit
    | Tell
    | Announce
    | Close
)
"""Everything a shard can instruct its engine to do; an engine handles every one."""
