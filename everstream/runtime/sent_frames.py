"""What a shard has sent, and sends again to whoever has gone back.

Binds a shard's message log to its outlets. When receivers go back, or the shard itself does, it is
asked for frames: they are read at once, while there is still time to say that they cannot be, and
sent when everybody is back. Without a log everybody goes back together and nothing is sent again.
"""

from collections.abc import Callable, Mapping, Sequence

from everstream.core.checkpoint_record import CheckpointRecord
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.core.messages import Recover
from everstream.core.plan import Plan
from everstream.core.scheme import Scheme
from everstream.pipeline.source import Reader
from everstream.runtime.message_log import MessageLog, Segment, log_of
from everstream.runtime.outlets import Outlet
from everstream.runtime.port import Port
from everstream.runtime.source_log import SourceLog, reads_again


class SentFrames:
    """One shard's memory of what it sent."""

    def __init__(self, plan: Plan, shard: ShardId, scheme: Scheme, port: Port) -> None:
        self.shard = shard
        self.outputs = plan.outputs[shard]
        self.log: MessageLog | None
        if scheme.log == "durable" and reads_again(plan, shard):
            self.log = SourceLog(plan, shard, port.load)
        else:
            self.log = log_of(scheme.log, shard, self.outputs, port.load)
        self._save_segment = port.save_segment
        self._asked_for: dict[ChannelId, int] = {}
        """Channels to be opened again -> what their receivers have seen."""
        self._found: dict[ChannelId, list[Frame]] = {}
        """What is sent there again then."""

    @property
    def size_bytes(self) -> int | None:
        """Of all that the log keeps."""
        return 0 if self.log is None else self.log.size_bytes

    @property
    def append(self) -> Callable[[Frame], None] | None:
        """What an outlet tells of every frame it sends."""
        return None if self.log is None else self._append

    def _append(self, frame: Frame) -> None:
        assert self.log is not None
        self.log.append(frame)
        full = self.log.full_segment()
        if full is not None:
            self._save_segment(full)

    def before_reading(self, reader: Reader) -> None:
        """A source is about to read: a log of offsets wants to know where."""
        if isinstance(self.log, SourceLog):
            self.log.reading_at(reader.offset)

    def before_forwarding(self, start: int, records: int) -> None:
        """And which of the records it has read it makes its frames of."""
        if isinstance(self.log, SourceLog):
            self.log.forwarding(start, records)

    def seal(self) -> Sequence[Segment]:
        """Everything sent so far, for a checkpoint to name."""
        return () if self.log is None else self.log.seal()

    def prune(self, received: Mapping[str, int]) -> None:
        """Nobody will ask for what was received before these positions."""
        if self.log is not None:
            self.log.prune(received)

    def ask(self, command: Recover) -> None:
        """Note which channels will want frames again."""
        goes_back = self.shard in command.records
        if goes_back:
            self._asked_for = {}
        for channel in self.outputs:
            if goes_back or channel.receiver in command.records:
                self._asked_for[channel] = command.received[str(channel)]

    def find(self) -> None:
        """Read what was asked for; raises CorruptObject if it cannot be read."""
        if self.log is not None:
            self._found = {c: self.log.after(c, seen) for c, seen in self._asked_for.items()}

    def asked(self) -> list[tuple[ChannelId, list[Frame]]]:
        """The channels to open now, with what to send there first."""
        asked_for, self._asked_for = self._asked_for, {}
        found, self._found = self._found, {}
        channels = []
        for channel, seen in asked_for.items():
            again = found.get(channel, [])
            if self.log is not None:
                # And what has been sent since.
                again = again + self.log.after(channel, again[-1].sequence if again else seen)
            channels.append((channel, again))
        return channels

    def restore(
        self,
        generation: Generation,
        record: CheckpointRecord | None,
        outlets: Mapping[int, Outlet],
    ) -> None:
        """The log is as it was at the checkpoint; nothing leaves before everybody is back."""
        if self.log is None:
            return
        sent = {c: record.sent.get(str(c), 0) if record else 0 for c in self.outputs}
        self.log.restore(generation, record.log if record else (), sent)
        for channel in self.outputs:
            outlet = outlets[channel.edge]
            outlet.cut(channel)
            if record is not None and record.final and outlet.idle and not outlet.feedback:
                self.log.ensure_end(channel, sent[channel])
