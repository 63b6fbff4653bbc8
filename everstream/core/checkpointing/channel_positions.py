"""How far a shard has come on each of its channels, and under which generation each one runs.

A position is a sequence number: of the newest frame that has arrived, was received by the
operators, or was sent. Frames of an older generation than the channel's come from a zombie. Event
time is that of the slowest input.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.frames import Frame, FrameKind, stands_for_a_lost_one
from everstream.core.ids import ChannelId, Generation
from everstream.errors import FramesLost, InternalError
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK


class ChannelPositions:
    """The positions of one shard. `gaps`: frames may be missing, and are counted."""

    def __init__(
        self, inputs: Sequence[ChannelId], outputs: Sequence[ChannelId], *, gaps: bool = False
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.ended: set[ChannelId] = set()
        """Inputs that have ended."""
        self.lost_frames = 0
        """Frames that were sent to this shard and could not be sent again."""
        self._gaps = gaps
        self._generation = dict.fromkeys([*inputs, *outputs], Generation(-1))
        """Rises whenever the shard at either end rolls back."""
        self._arrived = dict.fromkeys(inputs, 0)
        self._received = dict.fromkeys(inputs, 0)
        self._sent = dict.fromkeys(outputs, 0)

    @property
    def all_ended(self) -> bool:
        return len(self.ended) == len(self.inputs)

    def generation_of(self, channel: ChannelId) -> Generation:
        return self._generation[channel]

    def begin(self, generation: Generation, channels: Iterable[ChannelId] | None = None) -> None:
        """These channels (None: all) run under a new generation."""
        for channel in self._generation if channels is None else channels:
            self._generation[channel] = generation

    def arrive(self, frame: Frame) -> None:
        """A frame came in; it must be the next one."""
        channel = frame.channel
        expected = self._arrived[channel] + (0 if frame.kind is FrameKind.MARKER else 1)
        # A gap is counted at delivery, because checkpoints count deliveries.
        if frame.sequence != expected and not (self._gaps and frame.sequence > expected):
            kind = FramesLost if frame.sequence > expected else InternalError
            raise kind(
                f"{channel}: {frame.kind.name.lower()} frame {frame.sequence} came where "
                f"{expected} was due"
            )
        self._arrived[channel] = frame.sequence

    def receive(self, frame: Frame) -> None:
        """A frame, or the first part of one, is passed to the operators."""
        if frame.begun:
            return
        received = self._received[frame.channel]
        if self._gaps:
            self.lost_frames += frame.sequence - received - 1 + stands_for_a_lost_one(frame)
        self._received[frame.channel] = max(frame.sequence, received)

    def forget_waiting(self, channel: ChannelId) -> None:
        """Frames that have arrived but were not received will be sent again."""
        self._arrived[channel] = self._received[channel]

    def send(self, channel: ChannelId, kind: FrameKind) -> int:
        """The position of the next frame; a marker repeats the one before it."""
        if kind is not FrameKind.MARKER:
            self._sent[channel] += 1
        return self._sent[channel]

    def received_from(self, senders: Collection[object]) -> int:
        return sum(n for channel, n in self._received.items() if channel.sender in senders)

    def sent_to(self, receivers: Collection[object]) -> int:
        return sum(n for channel, n in self._sent.items() if channel.receiver in receivers)

    def received(self) -> dict[str, int]:
        """In the form that checkpoints and the coordinator use."""
        return {str(channel): count for channel, count in self._received.items()}

    def sent(self) -> dict[str, int]:
        return {str(channel): count for channel, count in self._sent.items()}

    def restore(self, record: CheckpointRecord | None, *, keeps_positions: bool) -> None:
        """Roll back to a checkpoint (None: to the empty start).

        Positions are kept where frames in transit are replayed from logs; otherwise they start
        anew.
        """
        by_name = {str(channel): channel for channel in self.inputs}
        ended = record.ended if record is not None else ()
        self.ended = {by_name[name] for name in ended if name in by_name}
        self.lost_frames = record.lost_frames if record is not None else 0
        received, sent = (record.received, record.sent) if record and keeps_positions else ({}, {})
        for channel in self.inputs:
            self._arrived[channel] = self._received[channel] = received.get(str(channel), 0)
        for channel in self.outputs:
            self._sent[channel] = sent.get(str(channel), 0)


class InputTimes:
    """One watermark per input. Feedback inputs do not count: they would wait for themselves."""

    def __init__(self, inputs: Sequence[ChannelId], feedback: Collection[ChannelId]) -> None:
        self.watermarks = dict.fromkeys(inputs, NO_WATERMARK)
        self.lowest = NO_WATERMARK
        self._timed = [channel for channel in inputs if channel not in feedback]

    def heard(self, channel: ChannelId, watermark: int) -> int | None:
        """An input has reached this watermark. Returns the lowest of all, if that has advanced."""
        if watermark <= self.watermarks[channel]:
            return None
        self.watermarks[channel] = watermark
        lowest = self._lowest()
        if lowest <= self.lowest:
            return None
        self.lowest = lowest
        return lowest

    def saved(self, without: Collection[ChannelId]) -> dict[str, int]:
        """For a checkpoint, of the inputs that have a watermark."""
        return {
            str(channel): watermark
            for channel, watermark in self.watermarks.items()
            if watermark != NO_WATERMARK and channel not in without
        }

    def restore(self, saved: Mapping[str, int], ended: Collection[ChannelId]) -> None:
        for channel in self.watermarks:
            watermark = saved.get(str(channel), NO_WATERMARK)
            self.watermarks[channel] = END_OF_TIME if channel in ended else watermark
        self.lowest = self._lowest()

    def _lowest(self) -> int:
        return min((self.watermarks[channel] for channel in self._timed), default=NO_WATERMARK)
