"""What goes round: one hop per epoch.

An edge that leads back leads out of the job. What is sent there is saved beside the sender's
checkpoint, and the manifest names it with the checkpoint of the one it is for: there it waits, and
comes in with the next epoch. So it belongs to the epoch it was sent in, and a store with such frames
can be restored by either engine.
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
    """Those that go on in this epoch, and those that wait for the next.

    Markers end an epoch, and the receiver of the next one knows that it has begun.
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
    """The checkpoints of an epoch, each with what was sent back to its shard in that epoch."""
    whole = dict(records)
    for report in reports:
        if report.carried is None:
            continue
        for shard in report.carried_to:
            has = whole[shard]
            whole[shard] = replace(has, carried=(*has.carried, report.carried), holds_frames=True)
    return whole


def carries(records: Records) -> bool:
    """Whether something is on its way round."""
    return any(record.carried for record in records.values())


def ended_cycles(plan: Plan, records: Records) -> tuple[int, ...]:
    """The cycles that still wait, and to which nothing can come any more."""
    return tuple(
        number
        for number, cycle in enumerate(plan.cycles)
        if any(shard not in records or not records[shard].final for shard in cycle)
        if all(shard in records and _is_dry(plan, shard, cycle, records[shard]) for shard in cycle)
    )


def _is_dry(plan: Plan, shard: ShardId, cycle: Sequence[ShardId], record: CheckpointRecord) -> bool:
    """Nothing waits here, and nothing more comes from outside the cycle."""
    outside = [str(channel) for channel in plan.inputs[shard] if channel.sender not in cycle]
    return not record.holds_frames and set(outside) <= set(record.ended)
