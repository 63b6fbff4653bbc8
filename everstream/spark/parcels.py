"""Small messages on their way to other hosts, several in one parcel.

Handing a message to ZeroMQ costs as much as all the rest that is done for a small frame. So small frames
and credit for the same host wait for each other: until there are enough of them, until something large
goes there, which takes them along, or until the host's turn is over. Nothing waits beyond the turn, nor
for a shard whose last step took longer than is saved, and the order of what goes to one host is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstream.core.ids import HostId, ShardId

TURN_S = 0.001
"""So long the runners go on before the host looks what has come; a step that takes longer is whole."""
SLOW_S = 0.0001
"""Longer than it takes to hand over a message or two: nothing waits for such a step."""
MOST_MESSAGES = 16
MOST_BYTES = 1 << 15


@dataclass(slots=True)
class _Parcel:
    messages: list[bytes] = field(default_factory=list)
    size: int = 0


class Parcels:
    """What waits, host by host."""

    def __init__(self, post: Callable[[HostId, list[Any], bool], None]) -> None:
        """post: hands the parts of one message over for a host, copied or not."""
        self._post = post
        self._waiting: dict[HostId, _Parcel] = {}
        self._slow: set[ShardId] = set()
        """Shards whose last step was a long one."""

    def add(self, host: HostId, message: bytes) -> None:
        """A message that has room for others beside it."""
        parcel = self._waiting.get(host)
        if parcel is None:
            parcel = self._waiting[host] = _Parcel()
        parcel.messages.append(message)
        parcel.size += len(message)
        if len(parcel.messages) >= MOST_MESSAGES or parcel.size >= MOST_BYTES:
            self.send(host)

    def add_large(self, host: HostId, header: bytes, payload: list[Any], *, copy: bool) -> None:
        """A message with parts of its own: it goes at once, with what waits ahead of it."""
        parcel = self._waiting.pop(host, None)
        first = b"".join([*parcel.messages, header]) if parcel is not None else header
        self._post(host, [first, *payload], copy)

    def send(self, host: HostId) -> None:
        """What waits for this host goes now."""
        parcel = self._waiting.pop(host, None)
        if parcel is not None:
            self._post(host, [b"".join(parcel.messages)], True)

    def send_all(self) -> None:
        """Nobody waits any longer."""
        while self._waiting:
            self.send(next(iter(self._waiting)))

    def before_step(self, shard: ShardId) -> None:
        """What others have sent does not wait for a shard that takes long."""
        if shard in self._slow:
            self.send_all()

    def after_step(self, shard: ShardId, took_s: float) -> None:
        if took_s > SLOW_S:
            self._slow.add(shard)
        else:
            self._slow.discard(shard)
