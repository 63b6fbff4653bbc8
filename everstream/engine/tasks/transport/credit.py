"""Credit on its way to the senders: how much more than was used up, and in how few messages.

A frame waits for several threads to wake up on its way to another process, so a sender with little
credit spends its time waiting for more. Where frames are small and done in no time the receiver
therefore gives a second one for each it has taken, up to a bound; as soon as they take long it keeps
what comes back, until there is as little on its way as there was at first. Slow work is thus never
piled up in front of one shard while another could have it, and markers do not wait long.

A message costs as much as a small frame does: what is granted goes when it is half of what may be on
its way, so that the sender has the other half to go on with, or at the end of the worker's turn.
"""

from collections.abc import Callable
from dataclasses import dataclass

from everstream.core.ids import ChannelId, Generation
from everstream.engine.tasks.transport.wire import Credit
from everstream.runtime.outlets import CREDIT_ON_DEMAND

MOST_MORE = 60
"""Frames that may be on their way beyond those a sender begins with."""
QUICK_S = 0.0001
SLOW_S = 0.001


@dataclass(slots=True)
class _Line:
    """One channel's credit, under one generation: whoever goes back begins with the first credit."""

    generation: Generation
    more: int = 0
    """Granted beyond what a sender begins with."""
    waiting: int = 0
    """Granted and not yet sent."""
    most: int = 0


class CreditGrants:
    """What one worker grants to other workers, channel by channel."""

    def __init__(self, send: Callable[[Credit], None]) -> None:
        self._send = send
        self._lines: dict[ChannelId, _Line] = {}
        self._unsent: set[ChannelId] = set()
        self._small: dict[ChannelId, bool] = {}

    def saw(self, channel: ChannelId, small: bool) -> None:
        """A frame came, in one part with its header or larger."""
        self._small[channel] = small

    def add(self, credit: Credit, took_s: float) -> None:
        """Frames have been taken, which took so long: grant as many, or more, or fewer."""
        channel, generation, frames, most = credit
        line = self._lines.get(channel)
        if line is None or line.generation != generation:
            line = self._lines[channel] = _Line(generation)
        if took_s < QUICK_S and line.more < MOST_MORE and self._small.get(channel, False):
            line.more += 1
            frames += 1
        elif took_s > SLOW_S and line.more > 0:
            line.more -= 1
            frames -= 1
        line.waiting += frames
        line.most = most
        if line.waiting >= (CREDIT_ON_DEMAND + line.more) // 2:
            self._send_line(channel, line)
        elif line.waiting:
            self._unsent.add(channel)

    def flush(self) -> None:
        """The turn is over: nobody waits for more."""
        while self._unsent:
            channel = self._unsent.pop()
            self._send_line(channel, self._lines[channel])

    def _send_line(self, channel: ChannelId, line: _Line) -> None:
        self._unsent.discard(channel)
        if line.waiting:
            frames, line.waiting = line.waiting, 0
            self._send(Credit(channel, line.generation, frames, line.most))
