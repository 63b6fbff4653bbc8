"""An outlet whose frames go to the receiver that asks first."""

from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from everstream.core.frames import FrameKind
from everstream.core.ids import ChannelId
from everstream.pipeline.batch import Batch
from everstream.pipeline.times import NO_WATERMARK
from everstream.runtime.outlets.base import Outlet
from everstream.runtime.outlets.waiting import EMPTY, Item
from everstream.runtime.payload import BatchPayload

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
