"""Which records a shard has been given: for readers of a record's envelope; decides nothing.

Records are counted per sender, in the order of the channel, and a checkpoint saves the counts. After
a rollback the count goes back with the state. The same sender and position then mean the same
record wherever the sender emits the same again: always if its frames are replayed from a log, and
otherwise if its output does not depend on the order in which its inputs came.
"""

from collections.abc import Collection, Sequence

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import ChannelId, ShardId


class Deliveries:
    """Per sender, how many records the operators of one shard were given, and once were before."""

    def __init__(self, shard: ShardId, inputs: Sequence[ChannelId]) -> None:
        own = ChannelId(-1, shard, shard)
        self._inputs = tuple(inputs) or (own,)
        """A source gives records to itself."""
        self._given = dict.fromkeys(self._inputs, 0)
        self._at_marker = dict.fromkeys(self._inputs, 0)
        """The counts when the newest marker came."""
        self._reached = dict.fromkeys(self._inputs, 0)
        """How far this process had come before it rolled back."""
        self._perhaps = dict.fromkeys(self._inputs, 0)
        """Up to here it had begun: an operator failed within these records."""
        self._at_work: tuple[ChannelId, int] | None = None
        """The records that are being processed: their channel, and the position of the first."""
        self.total = 0
        """Records given in this process, those given again included."""
        self.attempt = 1
        self._elsewhere = False
        self.unknown = False
        """Another process had this shard before, and only that one knows how far it had come."""

    def give(self, channel: ChannelId, records: int) -> None:
        self._at_work = channel, self._given[channel]
        self.total += records
        self._given[channel] += records

    def done(self) -> None:
        """The operators are through with what they were given."""
        self._at_work = None

    def emit(self, records: int) -> None:
        """A source has emitted records."""
        self.give(self._inputs[0], records)

    def marker(self, channel: ChannelId) -> None:
        self._at_marker[channel] = self._given[channel]

    def given(self, channel: ChannelId | None) -> int:
        return self._given[self._inputs[0] if channel is None else channel]

    def once_given(self, channel: ChannelId | None, position: int) -> bool | None:
        """Whether the record at this position was given to this shard before a rollback.

        None: not known, because the process that had the shard then is gone, or because an operator
        failed in the middle of a batch.
        """
        channel = self._inputs[0] if channel is None else channel
        if position < self._reached[channel]:
            return True
        return None if self.unknown or position < self._perhaps[channel] else False

    def saved(self, ahead: Collection[ChannelId]) -> tuple[int, ...]:
        """For a checkpoint. What inputs that are ahead have delivered since its marker comes again."""
        return tuple(
            (self._at_marker if channel in ahead else self._given)[channel]
            for channel in self._inputs
        )

    def checkpointed(self) -> None:
        self.unknown = self._elsewhere

    def begin(self, unknown: bool, elsewhere: bool) -> None:
        """A new process has this shard. elsewhere: others may work on it at any time, too."""
        self.unknown = unknown or elsewhere
        self._elsewhere = elsewhere

    def go_back(self, record: CheckpointRecord | None, attempt: int) -> None:
        """Roll back to a checkpoint (None: to the empty start)."""
        self.attempt = attempt
        for channel, given in self._given.items():
            self._perhaps[channel] = max(given, self._perhaps[channel])
            if self._at_work is not None and self._at_work[0] == channel:
                given = self._at_work[1]
            self._reached[channel] = max(given, self._reached[channel])
        self._at_work = None
        saved: dict[str, int] = {}
        if record is not None:
            names = list(record.received) or [str(self._inputs[0])]
            if len(names) == len(record.delivered):
                saved = dict(zip(names, record.delivered, strict=True))
        for channel in self._inputs:
            self._given[channel] = self._at_marker[channel] = saved.get(str(channel), 0)
