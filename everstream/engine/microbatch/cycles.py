"""Cycles: records go round one hop per epoch.

An edge that leads back leads out of the job. Its frames are saved beside the sender's checkpoint,
and the manifest names them with the receiver's checkpoint: they wait there and enter with the next
epoch. So they belong to the epoch they were sent in, and either engine can restore such a store.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ShardId
from everstream.core.plan import Plan
from everstream.engine.microbatch.orders import ShardReport
from everstream.runtime.channel_state import ChannelState

Records = Mapping[ShardId, CheckpointRecord]


def parted(plan: Plan, frames: Iterable[Frame]) -> tuple[list[Frame], list[Frame]]:
    """The frames to deliver in this epoch, and those that wait for the next.

    Markers are dropped: they end an epoch, and the receiver knows that the next one has begun.
    """
    on, back = [], []
    for frame in frames:
        if not plan.feedback(frame.channel):
            on.append(frame)
        elif frame.kind is not FrameKind.MARKER:
            back.append(frame)
    return on, back


def packed(frames: Iterable[Frame]) -> ChannelState:
    channels = ChannelState()
    for frame in frames:
        channels.add(frame)
    return channels


def handed_on(
    records: dict[ShardId, CheckpointRecord], reports: Sequence[ShardReport]
) -> dict[ShardId, CheckpointRecord]:
    """The checkpoints of an epoch, each with the frames sent back to its shard in that epoch."""
    whole = dict(records)
    for report in reports:
        if report.carried is None:
            continue
        for shard in report.carried_to:
            has = whole[shard]
            whole[shard] = replace(has, carried=(*has.carried, report.carried), holds_frames=True)
    return whole


def carries(records: Records) -> bool:
    return any(record.carried for record in records.values())


def ended_cycles(plan: Plan, records: Records) -> tuple[int, ...]:
    """The cycles that are still open and can receive nothing more."""
    return tuple(
        number
        for number, cycle in enumerate(plan.cycles)
        if any(shard not in records or not records[shard].final for shard in cycle)
        if all(shard in records and _is_dry(plan, shard, cycle, records[shard]) for shard in cycle)
    )


def _is_dry(plan: Plan, shard: ShardId, cycle: Sequence[ShardId], record: CheckpointRecord) -> bool:
    """No frames wait here, and none can come from outside the cycle."""
    outside = [str(channel) for channel in plan.inputs[shard] if channel.sender not in cycle]
    return not record.holds_frames and set(outside) <= set(record.ended)
