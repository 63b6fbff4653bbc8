"""Credit on its way to the senders: what is granted within a moment goes as one message.

A message costs as much as a small frame does. A sender that is granted half of its credit at once
still has the other half to go on with meanwhile; what is less waits for the end of the host's turn.
"""

from collections.abc import Callable

from everstream.core.ids import ChannelId
from everstream.runtime.outlets import CREDIT_ON_DEMAND
from everstream.spark.wire import Credit

TOGETHER = CREDIT_ON_DEMAND // 2


class Grants:
    """What one host has granted and not yet sent, channel by channel."""

    def __init__(self, send: Callable[[Credit], None]) -> None:
        self._send = send
        self._waiting: dict[ChannelId, Credit] = {}

    def add(self, credit: Credit) -> None:
        """Grant so much more; of a channel that has begun anew, what was granted before is void."""
        before = self._waiting.pop(credit.channel, None)
        if before is not None and before.generation == credit.generation:
            credit = credit._replace(frames=before.frames + credit.frames)
        if credit.frames >= TOGETHER:
            self._send(credit)
        else:
            self._waiting[credit.channel] = credit

    def flush(self) -> None:
        """The turn is over: nobody waits for more."""
        while self._waiting:
            self._send(self._waiting.popitem()[1])
