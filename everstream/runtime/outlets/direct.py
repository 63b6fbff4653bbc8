"""An outlet for records that each have a channel."""

from collections.abc import Iterable
from itertools import repeat
from typing import Any

from everstream.core.frames import FrameKind
from everstream.core.ids import ChannelId
from everstream.pipeline.batch import Batch
from everstream.pipeline.keys import Keying
from everstream.runtime.outlets.base import Outlet, Wiring
from everstream.runtime.outlets.waiting import EMPTY, Item
from everstream.runtime.payload import BatchPayload


class DirectOutlet(Outlet):
    """Each record has a channel: by key, or all channels."""

    def __init__(
        self, wiring: Wiring, keying: Keying | None = None, tolerant: bool = False
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
