"""Small messages on their way to other workers, several in one coalesced.

Handing a message to ZeroMQ costs as much as all the rest that is done for a small frame. So small frames
and credit for the same worker wait for each other: until there are enough of them, until something large
goes there, which takes them along, or until the worker's turn is over. Nothing waits beyond the turn, nor
for a shard whose last step took longer than is saved, and the order of what goes to one worker is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstream.core.ids import ShardId, WorkerId

TURN_S = 0.001
"""So long the runners go on before the worker looks what has come; a step that takes longer is whole."""
SLOW_S = 0.0001
"""Longer than it takes to hand over a message or two: nothing waits for such a step."""
MOST_MESSAGES = 16
MOST_BYTES = 1 << 15


@dataclass(slots=True)
class _Coalesced:
    messages: list[bytes] = field(default_factory=list)
    size: int = 0


class SendCoalescing:
    """What waits, worker by worker."""

    def __init__(self, post: Callable[[WorkerId, list[Any], bool], None]) -> None:
        """post: hands the parts of one message over for a worker, copied or not."""
        self._post = post
        self._waiting: dict[WorkerId, _Coalesced] = {}
        self._slow: set[ShardId] = set()
        """Shards whose last step was a long one."""

    def add(self, worker: WorkerId, message: bytes) -> None:
        """A message that has room for others beside it."""
        coalesced = self._waiting.get(worker)
        if coalesced is None:
            coalesced = self._waiting[worker] = _Coalesced()
        coalesced.messages.append(message)
        coalesced.size += len(message)
        if len(coalesced.messages) >= MOST_MESSAGES or coalesced.size >= MOST_BYTES:
            self.send(worker)

    def add_large(self, worker: WorkerId, header: bytes, payload: list[Any], *, copy: bool) -> None:
        """A message with parts of its own: it goes at once, with what waits ahead of it."""
        coalesced = self._waiting.pop(worker, None)
        first = b"".join([*coalesced.messages, header]) if coalesced is not None else header
        self._post(worker, [first, *payload], copy)

    def send(self, worker: WorkerId) -> None:
        """What waits for this worker goes now."""
        coalesced = self._waiting.pop(worker, None)
        if coalesced is not None:
            self._post(worker, [b"".join(coalesced.messages)], True)

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
