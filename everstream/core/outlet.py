"""Outlets: where a shard's output waits for credit and leaves along one edge of the graph.

A receiver grants each of its input channels so many frames; a sender never sends more. Markers
and ends need no credit but keep their place behind the frames that were produced before them.

Frames that were sent before and are asked for again go ahead of everything else on their channel.
A channel whose receiver goes back is cut: what is sent there meanwhile is only logged.

A watermark rides on the last frame that waits for a channel. A channel for which none waits gets
an empty frame as soon as it has credit to spare; until then later watermarks replace it, so a
slow receiver never makes the others wait for the sake of the time.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from everstream.core.frames import Frame, FrameKind, Payload
from everstream.core.ids import ChannelId, Epoch
from everstream.core.plan import Plan
from everstream.core.shard import Shard
from everstream.errors import UserError
from everstream.pipeline.batch import Batch, joined
from everstream.pipeline.graph import Broadcast, ByKey, OnDemand, Routing
from everstream.pipeline.keys import Keying
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK

CREDIT = 8
"""Frames a receiver takes on a channel before it has processed any."""
CREDIT_ON_DEMAND = 4
"""Fewer, so that a slow shard does not pile up what a quick one could have had."""


Item: TypeAlias = tuple[FrameKind, int, Payload | None, int]
"""Kind, number, payload, records: a frame that has no channel position yet."""
_EMPTY: Item = (FrameKind.DATA, 0, None, 0)


class Outlet(ABC):
    """Collects what one step emits, routes it and sends what credit allows."""

    credit = CREDIT

    def __init__(
        self,
        shard: Shard,
        channels: Sequence[ChannelId],
        send: Callable[[Frame], None],
        one_frame: bool,
        *,
        feedback: bool = False,
        log: Callable[[Frame], None] | None = None,
    ) -> None:
        self.shard = shard
        self.channels = tuple(channels)
        self.send = send
        self.one_frame = one_frame
        """Each step sends exactly one frame, be it empty: an ordered sink counts on it."""
        self.feedback = feedback
        """Leads back: it never makes its sender wait, which would be waiting for itself."""
        self.log = log
        self._again: dict[ChannelId, deque[Frame]] = {}
        """Frames that have their place on the channel and wait for credit to be sent again."""
        self._cut: set[ChannelId] = set()
        self._collected: list[Batch] = []
        self._watermark = NO_WATERMARK
        self._told: dict[ChannelId, int] = {}

    def collect(self, batch: Batch) -> None:
        """Part of what this step emits."""
        self._collected.append(batch)

    def flush(self, ordinal: int) -> None:
        """The step is over: route what it emitted and send what can be sent."""
        if self._collected:
            batches, self._collected = self._collected, []
            if len(batches) > 1:
                batches = joined(batches)
                if self.one_frame and len(batches) > 1:
                    raise UserError(
                        "an operator before an ordered sink emitted both rows and objects for "
                        "one batch; let it emit one kind."
                    )
            for batch in batches:
                self._route(batch, ordinal)
        elif self.one_frame:
            self._route([], ordinal)
        elif self._watermark == NO_WATERMARK:
            return
        self.pump()

    def advance(self, watermark: int) -> None:
        """All that is collected after what waits now is not before this time."""
        if not self.feedback:
            self._watermark = watermark

    def flush_outside_step(self) -> None:
        """What on_start or on_end emitted has no place in the source's order."""
        if self._collected and self.one_frame:
            raise UserError(
                "an operator before an ordered sink emitted from on_start or on_end, from a timer "
                "or because an input ended; it may emit only while it processes records."
            )
        if self._collected or not self.one_frame:
            self.flush(0)

    def marker(self, number: Epoch, overtaking: bool = False) -> None:
        if overtaking:
            for channel in self.channels:
                self._send(channel, (FrameKind.MARKER, number, None, 0), last=False)
            return
        self._to_all((FrameKind.MARKER, number, None, 0))
        self.pump()

    def end(self) -> None:
        """Nothing more will come. A cycle's end is for the coordinator to declare."""
        if self.feedback:
            return
        self._told = dict.fromkeys(self.channels, END_OF_TIME)
        self._to_all((FrameKind.END, 0, None, 0))
        self.pump()

    def reset(self) -> None:
        """Forget what waits, and start again with the first credit."""
        self._collected = []
        self._again = {}
        self._cut = set()
        self._watermark = NO_WATERMARK
        self._told = dict.fromkeys(self.channels, NO_WATERMARK)

    def _send(self, channel: ChannelId, item: Item, last: bool) -> None:
        """`last`: no records from before the watermark wait for this channel."""
        watermark = NO_WATERMARK
        if last and self._owed(channel):
            watermark = self._told[channel] = self._watermark
        frame = self.shard.stamp(channel, *item, watermark)
        if self.log is not None and frame.kind is not FrameKind.MARKER:
            self.log(frame)
        if channel in self._again:
            self._again[channel].append(frame)
        elif channel not in self._cut:
            self.send(frame)

    def cut(self, channel: ChannelId) -> None:
        """The receiver goes back: nothing reaches it until the channel is opened again."""
        self._cut.add(channel)
        self._again.pop(channel, None)
        self._set_credit(channel, 0)

    def open(self, channel: ChannelId, again: Sequence[Frame]) -> None:
        """The receiver is back, and has not seen these frames."""
        self._cut.discard(channel)
        if again:
            generation = self.shard.channel_generation[channel]
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
        """What waits, as a value that pickles and that `requeue` takes."""

    @abstractmethod
    def requeue(self, saved: Any) -> None:
        """Let this wait, ahead of everything to come."""

    @abstractmethod
    def _set_credit(self, channel: ChannelId, frames: int) -> None: ...

    @abstractmethod
    def _spend(self, channel: ChannelId) -> bool:
        """Take one credit of the channel, if it has any."""

    def _owed(self, channel: ChannelId) -> bool:
        """Whether a channel has not been told the watermark."""
        return self._watermark > self._told[channel]

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Nothing waits for credit."""

    @abstractmethod
    def grant(self, channel: ChannelId, frames: int) -> None:
        """The receiver takes so many more frames."""

    @abstractmethod
    def pump(self) -> None:
        """Send what credit allows."""

    @abstractmethod
    def _route(self, batch: Batch, ordinal: int) -> None: ...

    @abstractmethod
    def _to_all(self, item: Item) -> None: ...


class DemandOutlet(Outlet):
    """Each frame goes to the channel that asked first."""

    credit = CREDIT_ON_DEMAND

    def reset(self) -> None:
        super().reset()
        self._waiting: deque[Item] = deque()
        self._asking: deque[ChannelId] = deque(list(self.channels) * self.credit)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._again

    def grant(self, channel: ChannelId, frames: int) -> None:
        self._asking.extend([channel] * frames)

    def queued(self) -> Any:
        return [_saved(item) for item in self._waiting]

    def requeue(self, saved: Any) -> None:
        self._waiting.extend(_restored(item) for item in saved)

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
                    self._send(channel, _EMPTY, last=True)

    def _route(self, batch: Batch, ordinal: int) -> None:
        self._waiting.append((FrameKind.DATA, ordinal, Payload(batch), len(batch)))

    def _to_all(self, item: Item) -> None:
        self._waiting.append(item)


class DirectOutlet(Outlet):
    """Each record has its channel: by key, or all of them."""

    def __init__(
        self,
        shard: Shard,
        channels: Sequence[ChannelId],
        send: Callable[[Frame], None],
        one_frame: bool,
        *,
        feedback: bool = False,
        log: Callable[[Frame], None] | None = None,
        keying: Keying | None = None,
    ) -> None:
        super().__init__(shard, channels, send, one_frame, feedback=feedback, log=log)
        self.keying = keying

    def reset(self) -> None:
        super().reset()
        self._waiting: dict[ChannelId, deque[Item]] = {c: deque() for c in self.channels}
        self._credit = dict.fromkeys(self.channels, self.credit)

    @property
    def idle(self) -> bool:
        return not any(self._waiting.values()) and not self._again

    def grant(self, channel: ChannelId, frames: int) -> None:
        self._credit[channel] += frames

    def queued(self) -> Any:
        return {
            str(channel): [_saved(item) for item in waiting]
            for channel, waiting in self._waiting.items()
            if waiting
        }

    def requeue(self, saved: Any) -> None:
        for channel, waiting in self._waiting.items():
            waiting.extend(_restored(item) for item in saved.get(str(channel), ()))

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
                self._send(channel, _EMPTY, last=True)

    def _route(self, batch: Batch, ordinal: int) -> None:
        if self.keying is None:
            payload = Payload(batch)
            for waiting in self._waiting.values():
                waiting.append((FrameKind.DATA, ordinal, payload, len(batch)))
            return
        for index, part in self.keying.split(batch, len(self.channels)):
            item = (FrameKind.DATA, ordinal, Payload(part), len(part))
            self._waiting[self.channels[index]].append(item)

    def _to_all(self, item: Item) -> None:
        for waiting in self._waiting.values():
            waiting.append(item)


def make_outlet(
    routing: Routing,
    shard: Shard,
    channels: Sequence[ChannelId],
    send: Callable[[Frame], None],
    one_frame: bool,
    *,
    feedback: bool = False,
    log: Callable[[Frame], None] | None = None,
) -> Outlet:
    match routing:
        case OnDemand():
            return DemandOutlet(shard, channels, send, one_frame, feedback=feedback, log=log)
        case ByKey(keying=keying):
            return DirectOutlet(
                shard, channels, send, one_frame, feedback=feedback, log=log, keying=keying
            )
        case Broadcast():
            return DirectOutlet(shard, channels, send, one_frame, feedback=feedback, log=log)


def make_outlets(
    plan: Plan,
    shard: Shard,
    send: Callable[[Frame], None],
    log: Callable[[Frame], None] | None,
) -> dict[int, Outlet]:
    """One outlet for each edge of the graph that leaves a shard."""
    outputs, order_matters = plan.outputs[shard.id], plan.order_matters()
    return {
        number: make_outlet(
            edge.routing,
            shard,
            [channel for channel in outputs if channel.edge == number],
            send,
            one_frame=edge.receiver in order_matters,
            feedback=edge.feedback,
            log=log,
        )
        for number, edge in enumerate(plan.graph.edges)
        if any(channel.edge == number for channel in outputs)
    }


def _saved(item: Item) -> tuple[int, int, bytes | None, int]:
    """Encoded at once: the records may be changed by whoever made them."""
    kind, number, payload, records = item
    return int(kind), number, None if payload is None else bytes(payload.encoded), records


def _restored(saved: tuple[int, int, bytes | None, int]) -> Item:
    kind, number, encoded, records = saved
    return FrameKind(kind), number, None if encoded is None else Payload(encoded=encoded), records
