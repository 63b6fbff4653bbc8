"""Outlets: where a shard's output waits for credit and leaves along one edge of the graph.

A receiver grants each of its input channels a number of frames; a sender never sends more. Markers
and ends need no credit but keep their place behind the frames that were produced before them.

Frames that are replayed go ahead of everything else on their channel. A channel whose receiver
rolls back is cut: frames sent there meanwhile are only logged.

A watermark rides on the last frame that waits for a channel. A channel for which none waits gets
an empty frame as soon as it has credit to spare. Until then later watermarks replace it, so a slow
receiver never makes the others wait for the sake of event time.

With credit comes the frame size that a receiver wants: every frame that waits at a slow receiver
delays the markers behind it.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Epoch
from everstream.core.plan import Plan
from everstream.core.shard import Shard
from everstream.errors import UserError
from everstream.pipeline.batch import Batch, joined
from everstream.pipeline.graph import Broadcast, ByKey, ByRoute, OnDemand, Routing
from everstream.pipeline.keys import Keying
from everstream.pipeline.routes import Router
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK
from everstream.runtime.pace import FIRST, UNLIMITED
from everstream.runtime.payload import BatchPayload
from everstream.runtime.spilled import SpillSpace
from everstream.runtime.waiting import EMPTY, Item, PlainQueue, SpillingQueue

_SMOOTHING = 0.3


# With each grant a receiver sends the number of records that a frame to it should have. How many
# records of a step go to it, a fraction or a multiple of those that went in, is learned while
# running. From both follows how many records a step may have so that none of its frames is too
# large.
class FrameSizes:
    """The frame sizes that the receivers of one outlet want."""

    def __init__(self) -> None:
        self.most = FIRST
        """Records the next step may have. Few, until a receiver has sent its wish."""
        self._wished: dict[ChannelId, int] = {}
        """Only the receivers that want small frames."""
        self._shares: dict[ChannelId, float] = {}
        """How many records each of them gets for one that goes in."""

    def wish(self, channel: ChannelId, records: int) -> None:
        """A receiver wants frames of this many records (0: any size)."""
        if self._wished.get(channel, 0) == records and self.most != FIRST:
            return
        if records:
            self._wished[channel] = records
            self._shares.setdefault(channel, 1.0)
        elif channel in self._wished:
            del self._wished[channel], self._shares[channel]
        self._quiesce()

    @property
    def learning(self) -> bool:
        """Whether the distribution over the channels matters."""
        return bool(self._wished)

    def sent(self, records: int, to: dict[ChannelId, int]) -> None:
        """A step with this many records has become frames of these sizes."""
        if not records:
            return
        changed = False
        for channel, share in self._shares.items():
            now = to.get(channel, 0) / records
            if now != share:
                self._shares[channel] = share + _SMOOTHING * (now - share)
                changed = True
        if changed:
            self._quiesce()

    def _quiesce(self) -> None:
        self.most = UNLIMITED
        for channel, wished in self._wished.items():
            share = self._shares[channel]
            if share * UNLIMITED > wished:
                self.most = max(1, min(self.most, int(wished / share)))


CREDIT = 8
"""Frames a receiver accepts on a channel before it has processed any."""


@dataclass(frozen=True)
class Wiring:
    """The sender, the receivers and the properties of an outlet's edge."""

    shard: Shard
    channels: tuple[ChannelId, ...]
    send: Callable[[Frame], None]
    one_frame: bool = False
    """Each step sends exactly one frame, even if empty: an ordered sink depends on it."""
    feedback: bool = False
    """A feedback edge: it never makes its sender wait, which would be waiting for itself."""
    log: Callable[[Frame], None] | None = None
    space: SpillSpace | None = None
    """Where a feedback edge keeps records that do not fit into memory."""


class Outlet(ABC):
    """Collects what one step emits, routes it and sends what credit allows."""

    credit = CREDIT

    def __init__(self, wiring: Wiring) -> None:
        self.shard = wiring.shard
        self.channels = wiring.channels
        self.send = wiring.send
        self.one_frame = wiring.one_frame
        self.feedback = wiring.feedback
        self.log = wiring.log
        self._space = wiring.space if wiring.feedback else None
        self._again: dict[ChannelId, deque[Frame]] = {}
        """Frames that have a position on the channel and wait for credit to be sent again."""
        self._cut: set[ChannelId] = set()
        self._collected: list[Batch] = []
        self._watermark = NO_WATERMARK
        self._sent_watermarks: dict[ChannelId, int] = {}
        self._sizes = FrameSizes()

    @property
    def most(self) -> int:
        """Records a step may have for the sake of downstream shards.

        On a cycle the shards would pass their limits round to each other for ever.
        """
        return UNLIMITED if self.feedback else self._sizes.most

    def wish(self, channel: ChannelId, records: int) -> None:
        """The receiver wants frames of this many records (0: any size)."""
        self._sizes.wish(channel, records)

    def collect(self, batch: Batch) -> None:
        """Take a part of the output of this step."""
        self._collected.append(batch)

    def flush(self, ordinal: int, records: int = 0) -> None:
        """The step of `records` records is over: route its output, send what credit allows."""
        if self._collected:
            batches, self._collected = self._collected, []
            if len(batches) > 1:
                batches = joined(batches)
                if self.one_frame and len(batches) > 1:
                    raise UserError(
                        "an operator before an ordered sink emitted both rows and objects for "
                        "one batch; let it emit one kind."
                    )
            if self._sizes.learning:
                self._route_measured(batches, ordinal, records)
            else:
                for batch in batches:
                    self._route(batch, ordinal)
        else:
            self._sizes.sent(records, {})
            if self.one_frame:
                self._route([], ordinal)
            elif self._watermark == NO_WATERMARK:
                return
        self.pump()

    def _route_measured(self, batches: Sequence[Batch], ordinal: int, records: int) -> None:
        sizes: dict[ChannelId, int] = {}
        for batch in batches:
            for channel, size in self._route(batch, ordinal):
                sizes[channel] = max(size, sizes.get(channel, 0))
        self._sizes.sent(records, sizes)

    def advance(self, watermark: int) -> None:
        """Nothing that is collected from now on is before this time."""
        if not self.feedback:
            self._watermark = watermark

    def flush_outside_step(self) -> None:
        """Output of on_start or on_end has no position in the source's order."""
        if self._collected and self.one_frame:
            raise UserError(
                "an operator before an ordered sink emitted from on_start or on_end, from a timer "
                "or because an input ended; it may emit only while it processes records."
            )
        if self._collected or not self.one_frame:
            self.flush(0)

    def marker(self, epoch: Epoch, overtaking: bool = False) -> None:
        if overtaking:
            for channel in self.channels:
                self._send(channel, (FrameKind.MARKER, epoch, None, 0), last=False)
            return
        self._to_all((FrameKind.MARKER, epoch, None, 0))
        self.pump()

    def end(self) -> None:
        """No more output. The coordinator declares the end of a cycle."""
        if self.feedback:
            return
        self._sent_watermarks = dict.fromkeys(self.channels, END_OF_TIME)
        self._to_all((FrameKind.END, 0, None, 0))
        self.pump()

    def reset(self) -> None:
        """Drop all queued frames, and start again with the first credit."""
        self._collected = []
        self._again = {}
        self._cut = set()
        self._watermark = NO_WATERMARK
        self._sent_watermarks = dict.fromkeys(self.channels, NO_WATERMARK)

    def _queue(self, channel: ChannelId, queues: int) -> PlainQueue | SpillingQueue:
        """An empty queue, one of `queues`. It can become long only on a feedback edge."""
        if self._space is None:
            return PlainQueue()
        return SpillingQueue(self._space, channel, self._space.share_bytes(queues))

    def _send(self, channel: ChannelId, item: Item, last: bool) -> None:
        """`last`: no records from before the watermark wait for this channel."""
        watermark = NO_WATERMARK
        if last and self._owed(channel):
            watermark = self._sent_watermarks[channel] = self._watermark
        frame = self.shard.stamp(channel, *item, watermark)
        if self.log is not None and frame.kind is not FrameKind.MARKER:
            self.log(frame)
        if channel in self._again:
            self._again[channel].append(frame)
        elif channel not in self._cut:
            self.send(frame)

    def cut(self, channel: ChannelId) -> None:
        """The receiver rolls back: nothing reaches it until the channel is opened again."""
        self._cut.add(channel)
        self._again.pop(channel, None)
        self._set_credit(channel, 0)

    def open(self, channel: ChannelId, again: Sequence[Frame]) -> None:
        """The receiver is back, and has not received these frames."""
        self._cut.discard(channel)
        if again:
            generation = self.shard.generation_of(channel)
            self._again[channel] = deque(replace(f, generation=generation) for f in again)
        self._set_credit(channel, self.credit)
        self.pump()

    def _send_again(self) -> None:
        for channel, frames in list(self._again.items()):
            while frames and (frames[0].kind is FrameKind.END or self._spend(channel)):
                self.send(frames.popleft())
            if not frames:
                del self._again[channel]

    @abstractmethod
    def queued(self) -> Any:
        """The queued frames, as a value that pickles and that `requeue` accepts.

        It may hold segments on disk: they pickle once they have been saved.
        """

    @abstractmethod
    def requeue(self, saved: Any) -> None:
        """Queue this again, ahead of everything to come."""

    @abstractmethod
    def _set_credit(self, channel: ChannelId, frames: int) -> None: ...

    @abstractmethod
    def _spend(self, channel: ChannelId) -> bool:
        """Take one credit of the channel, if it has any."""

    def _owed(self, channel: ChannelId) -> bool:
        """Whether the watermark has not been sent on a channel."""
        return self._watermark > self._sent_watermarks[channel]

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Nothing waits for credit."""

    @abstractmethod
    def grant(self, channel: ChannelId, frames: int) -> None:
        """The receiver accepts this many more frames."""

    @abstractmethod
    def pump(self) -> None:
        """Send what credit allows."""

    @abstractmethod
    def _route(self, batch: Batch, ordinal: int) -> Iterable[tuple[ChannelId, int]]:
        """Queue it for its channels. Returns how many records each of them may get."""

    @abstractmethod
    def _to_all(self, item: Item) -> None: ...


class DirectOutlet(Outlet):
    """Each record has a channel, by its key or by the user's choice, or goes to all channels."""

    def __init__(
        self, wiring: Wiring, keying: Keying | Router | None = None, tolerant: bool = False
    ) -> None:
        """tolerant: the receiver decides what happens to records without a key."""
        super().__init__(wiring)
        self.keying = keying
        self._tolerant = tolerant

    def reset(self) -> None:
        super().reset()
        self._waiting = {c: self._queue(c, len(self.channels)) for c in self.channels}
        self._credit = dict.fromkeys(self.channels, self.credit)

    @property
    def idle(self) -> bool:
        return not any(self._waiting.values()) and not self._again

    def grant(self, channel: ChannelId, frames: int) -> None:
        self._credit[channel] += frames

    def queued(self) -> Any:
        return {
            str(channel): waiting.saved() for channel, waiting in self._waiting.items() if waiting
        }

    def requeue(self, saved: Any) -> None:
        for channel, waiting in self._waiting.items():
            waiting.requeue(saved.get(str(channel), ()))

    def _set_credit(self, channel: ChannelId, frames: int) -> None:
        self._credit[channel] = frames

    def _spend(self, channel: ChannelId) -> bool:
        if not self._credit[channel]:
            return False
        self._credit[channel] -= 1
        return True

    def pump(self) -> None:
        if self._again:
            self._send_again()
        for channel, waiting in self._waiting.items():
            if channel in self._again:
                continue
            while waiting:
                item = waiting[0]
                if item[0] is FrameKind.DATA:
                    if not self._credit[channel]:
                        break
                    self._credit[channel] -= 1
                waiting.popleft()
                self._send(channel, item, last=not waiting and item[0] is FrameKind.DATA)
            if self._owed(channel) and not waiting and self._credit[channel] and not self.one_frame:
                self._credit[channel] -= 1
                self._send(channel, EMPTY, last=True)

    def _route(self, batch: Batch, ordinal: int) -> Iterable[tuple[ChannelId, int]]:
        if self.keying is None:
            payload = BatchPayload(batch)
            for waiting in self._waiting.values():
                waiting.append((FrameKind.DATA, ordinal, payload, len(batch)))
            return zip(self.channels, repeat(len(batch)))
        sizes = []
        for index, part in self.keying.split(batch, len(self.channels), self._tolerant):
            channel = self.channels[index]
            self._waiting[channel].append((FrameKind.DATA, ordinal, BatchPayload(part), len(part)))
            sizes.append((channel, len(part)))
        return sizes

    def _to_all(self, item: Item) -> None:
        for waiting in self._waiting.values():
            waiting.append(item)


CREDIT_ON_DEMAND = 4
"""Fewer, so that a slow shard does not hoard frames that a fast one could process."""


class DemandOutlet(Outlet):
    """Each frame goes to the channel that asked first."""

    credit = CREDIT_ON_DEMAND

    def reset(self) -> None:
        super().reset()
        self._waiting = self._queue(self.channels[0], 1)
        self._asking: deque[ChannelId] = deque(list(self.channels) * self.credit)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._again

    def grant(self, channel: ChannelId, frames: int) -> None:
        self._asking.extend([channel] * frames)

    def queued(self) -> Any:
        return self._waiting.saved()

    def requeue(self, saved: Any) -> None:
        self._waiting.requeue(saved)

    def _set_credit(self, channel: ChannelId, frames: int) -> None:
        others = [other for other in self._asking if other != channel]
        self._asking = deque(others + [channel] * frames)

    def _spend(self, channel: ChannelId) -> bool:
        if channel not in self._asking:
            return False
        self._asking.remove(channel)
        return True

    def _first_asking(self) -> ChannelId | None:
        if not self._again:
            return self._asking.popleft() if self._asking else None
        channel = next((c for c in self._asking if c not in self._again), None)
        if channel is not None:
            self._asking.remove(channel)
        return channel

    def pump(self) -> None:
        if self._again:
            self._send_again()
        while self._waiting:
            item = self._waiting[0]
            if item[0] is FrameKind.DATA:
                channel = self._first_asking()
                if channel is None:
                    return
                self._send(channel, item, last=len(self._waiting) == 1)
            else:
                for channel in self.channels:
                    self._send(channel, item, last=False)
            self._waiting.popleft()
        if self._watermark != NO_WATERMARK and not self.one_frame:
            for channel in self.channels:
                if self._owed(channel) and channel not in self._again and self._spend(channel):
                    self._send(channel, EMPTY, last=True)

    def _route(self, batch: Batch, ordinal: int) -> Iterable[tuple[ChannelId, int]]:
        self._waiting.append((FrameKind.DATA, ordinal, BatchPayload(batch), len(batch)))
        return zip(self.channels, repeat(len(batch)))

    def _to_all(self, item: Item) -> None:
        self._waiting.append(item)


def make_outlet(routing: Routing, wiring: Wiring, tolerant: bool = False) -> Outlet:
    match routing:
        case OnDemand():
            return DemandOutlet(wiring)
        case ByKey(keying=keying):
            return DirectOutlet(wiring, keying, tolerant)
        case ByRoute(router=router):
            return DirectOutlet(wiring, router.towards(wiring.channels[0].receiver.operator))
        case Broadcast():
            return DirectOutlet(wiring)


def make_outlets(
    plan: Plan,
    shard: Shard,
    send: Callable[[Frame], None],
    log: Callable[[Frame], None] | None,
    space: SpillSpace | None = None,
) -> dict[int, Outlet]:
    outlets, order_matters = {}, plan.order_matters()
    for number, edge in enumerate(plan.graph.edges):
        channels = tuple(channel for channel in plan.outputs[shard.id] if channel.edge == number)
        if channels:
            ordered = edge.receiver in order_matters
            wiring = Wiring(shard, channels, send, ordered, edge.feedback, log, space)
            tolerant = plan.graph.nodes[edge.receiver].on_error != "fail"
            outlets[number] = make_outlet(edge.routing, wiring, tolerant)
    return outlets
