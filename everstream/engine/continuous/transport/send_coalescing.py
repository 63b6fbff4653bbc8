"""Coalesces small messages to other workers, several into one.

Passing a message to ZeroMQ costs as much as everything else that is done for a small frame. So
small frames and credit for the same worker are collected until there are enough of them, until a
large message to that worker takes them along, or until the worker's turn is over. Nothing waits
beyond the turn, or for a shard whose last step took longer than this saves. The order of messages
to a worker is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstream.core.ids import ShardId, WorkerId

TURN_S = 0.001
"""How long the runners step before the worker checks for messages; a step is never interrupted."""
SLOW_S = 0.0001
"""Longer than it takes to pass on a message or two: messages do not wait for such a step."""
MOST_MESSAGES = 16
MOST_BYTES = 1 << 15


@dataclass(slots=True)
class _Coalesced:
    messages: list[bytes] = field(default_factory=list)
    size: int = 0


class SendCoalescing:
    def __init__(self, post: Callable[[WorkerId, list[Any], bool], None]) -> None:
        """post: sends the parts of one message to a worker, copied or not."""
        self._post = post
        self._waiting: dict[WorkerId, _Coalesced] = {}
        self._slow: set[ShardId] = set()
        """Shards whose last step was slow."""

    def add(self, worker: WorkerId, message: bytes) -> None:
        """A message that can be coalesced with others."""
        coalesced = self._waiting.get(worker)
        if coalesced is None:
            coalesced = self._waiting[worker] = _Coalesced()
        coalesced.messages.append(message)
        coalesced.size += len(message)
        if len(coalesced.messages) >= MOST_MESSAGES or coalesced.size >= MOST_BYTES:
            self.send(worker)

    def add_large(self, worker: WorkerId, header: bytes, payload: list[Any], *, copy: bool) -> None:
        """A message with separate parts: it is sent at once, after the waiting messages."""
        coalesced = self._waiting.pop(worker, None)
        first = b"".join([*coalesced.messages, header]) if coalesced is not None else header
        self._post(worker, [first, *payload], copy)

    def send(self, worker: WorkerId) -> None:
        coalesced = self._waiting.pop(worker, None)
        if coalesced is not None:
            self._post(worker, [b"".join(coalesced.messages)], True)

    def send_all(self) -> None:
        while self._waiting:
            self.send(next(iter(self._waiting)))

    def before_step(self, shard: ShardId) -> None:
        """Messages of other shards do not wait for a slow shard."""
        if shard in self._slow:
            self.send_all()

    def after_step(self, shard: ShardId, took_s: float) -> None:
        if took_s > SLOW_S:
            self._slow.add(shard)
        else:
            self._slow.discard(shard)
