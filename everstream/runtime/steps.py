"""The work of a shard, step by step: a frame or a part of one, a batch of a source, a timer.

Each step goes through the chain, its output leaves through the outlets with the step's ordinal, and
the pace learns how long it took. When a step comes, and what follows from it, others decide.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from everstream.core.frames import Frame
from everstream.core.ids import ChannelId
from everstream.core.instructions import Instruction
from everstream.core.shard import Shard
from everstream.pipeline.source import EndOfStream
from everstream.pipeline.tuning import Tuning
from everstream.runtime.chain import ChainStages
from everstream.runtime.measuring import TimeUse
from everstream.runtime.outlets import Outlet
from everstream.runtime.pace import UNLIMITED, Pace
from everstream.runtime.port import Port
from everstream.runtime.sent_frames import SentFrames


class ShardSteps(ABC):
    """What a `ShardRunner` does with records; it is the only one to inherit this."""

    shard: Shard
    chain: ChainStages
    outlets: Mapping[int, Outlet]
    sent: SentFrames
    sides: Mapping[ChannelId, str]
    port: Port
    pace: Pace
    ready_at_s: float
    processed: int
    use: TimeUse
    _wishes: bool
    _untold: Tuning | None

    @abstractmethod
    def _perform(self, instructions: Sequence[Instruction]) -> None: ...

    def can_step(self, now_s: float) -> bool:
        """There may be work, and room for its output."""
        return self._is_ready(now_s) and self._has_room()

    def may_step(self, now_s: float) -> bool:
        """The same, and if it cannot it is noted what it waits for."""
        if not self._is_ready(now_s):
            self.use.rests(now_s, blocked=False)
        elif not self._has_room():
            self.use.rests(now_s, blocked=True)
        else:
            return True
        return False

    def _is_ready(self, now_s: float) -> bool:
        if not self.shard.works:
            return False
        if self.shard.paused and self.chain.head.reader is not None:
            return bool(self.chain.head.rest)
        return now_s >= self.ready_at_s or self._timer_due()

    def _has_room(self) -> bool:
        return all(outlet.idle or outlet.feedback for outlet in self.outlets.values())

    def timer_in_s(self) -> float:
        """How long until an operator can be called that wants to be; for ever if none does."""
        timer_at_s = self.chain.timer_at_s
        if timer_at_s == math.inf or self.shard.paused or not self.can_step(math.inf):
            return math.inf
        return timer_at_s - self.chain.now_s()

    # How much.

    def _most(self) -> int:
        """Records the next step may have: for its own sake, and for those behind."""
        if not self._wishes:
            return UNLIMITED
        return self._for_those_behind(self.pace.take())

    def _wished(self) -> int:
        """The size of frames this shard wants; 0 if it takes them as they come."""
        if not self._wishes:
            return 0
        wished = self._for_those_behind(self.pace.fits)
        return wished if wished < UNLIMITED else 0

    def _for_those_behind(self, most: int) -> int:
        """So many records, or fewer if somebody behind wants fewer."""
        for outlet in self.outlets.values():
            if outlet.most < most:
                most = outlet.most
        return most

    # Steps.

    def _deliver(self, frame: Frame, records: int, watermark: int | None) -> None:
        began_s = self.port.clock_s()
        self.processed += records
        last = frame.start + records == frame.records
        self.chain.moment.born_s = frame.born_s
        if frame.payload is not None:
            batch = frame.payload.batch
            if records < frame.records:
                batch = batch[frame.start : frame.start + records]
            self.chain.process(batch, self.sides[frame.channel], last=last)
        if watermark is not None:
            self.chain.advance(watermark)
        self._flush(frame.number, records)
        self.pace.note(records, self.port.clock_s() - began_s)
        if not last:
            self.shard.on_cut(frame, records)
        elif frame.sequence:
            self.port.grant(frame.channel, 1, self._wished())

    def _advance(self, watermark: int) -> None:
        self.chain.advance(watermark)
        self._flush_outside_step()

    def _timer_due(self) -> bool:
        timer_at_s = self.chain.timer_at_s
        due = timer_at_s != math.inf and timer_at_s <= self.chain.now_s()
        return due and not self.shard.paused

    def _call_timers(self) -> None:
        self.chain.call_timers(self.chain.now_s())
        self._flush_outside_step()

    def _produce(self, most: int) -> None:
        rest = self.chain.head.rest
        if rest or self._read():
            began_s = self.port.clock_s()
            start = rest.start
            part = rest.take(most)
            self.sent.before_forwarding(start, len(part))
            self.chain.forward(part, last=not rest)
            self.processed += len(part)
            self._flush(self.shard.next_ordinal(), len(part))
            self.pace.note(len(part), self.port.clock_s() - began_s)

    def _read(self) -> bool:
        """Whether the source had a batch."""
        head = self.chain.head
        assert head.reader is not None
        self.sent.before_reading(head.reader)
        batch = self.chain.read()
        if batch is None:
            self.ready_at_s = self.port.clock_s() + head.reader.ready_in_s()
            if self.chain.advance_source():
                self._flush_outside_step()
        elif isinstance(batch, EndOfStream):
            self._perform(self.shard.on_source_ended())
        else:
            head.rest.fill(batch)
            return True
        return False

    def _start(self) -> None:
        self.chain.start()
        self._flush_outside_step()

    def _tune(self) -> None:
        tuning, self._untold = self._untold, None
        assert tuning is not None
        self.chain.tune(tuning)
        self._flush_outside_step()

    # Output.

    def _flush(self, ordinal: int, records: int) -> None:
        """A step of so many records is over: its output leaves as frames with this ordinal."""
        self.shard.born_s = self.chain.moment.born_s
        for outlet in self.outlets.values():
            outlet.flush(ordinal, records)

    def _flush_outside_step(self) -> None:
        self.shard.born_s = self.chain.moment.born_s
        for outlet in self.outlets.values():
            outlet.flush_outside_step()
