"""Credit for senders: how much to grant beyond what was used up, and in how few messages.

On its way to another process a frame waits for several threads to wake up, so a sender with little
credit spends its time waiting. Where frames are small and quick to process, the receiver therefore
grants a second one for each that it has taken, up to a limit. As soon as frames take long, it
withholds returned credit until as little is in flight as at the start. So slow work does not pile
up in front of one shard while another could take it, and markers do not wait long.

A message costs as much as a small frame. So a grant is sent when it reaches half of what may be in
flight, which leaves the sender the other half to continue with, or at the end of the worker's turn.
"""

from collections.abc import Callable
from dataclasses import dataclass

from everstream.core.ids import ChannelId, Generation
from everstream.engine.continuous.transport.wire import Credit
from everstream.runtime.outlets import CREDIT_ON_DEMAND

MOST_MORE = 60
"""Frames that may be in flight beyond a sender's initial credit."""
QUICK_S = 0.0001
SLOW_S = 0.001


@dataclass(slots=True)
class _Line:
    """One channel's credit in one generation: after a rollback it starts with the initial credit."""

    generation: Generation
    more: int = 0
    """Granted beyond a sender's initial credit."""
    waiting: int = 0
    """Granted and not yet sent."""
    most: int = 0


class CreditGrants:
    """The credit that one worker grants to other workers, by channel."""

    def __init__(self, send: Callable[[Credit], None]) -> None:
        self._send = send
        self._lines: dict[ChannelId, _Line] = {}
        self._unsent: set[ChannelId] = set()
        self._small: dict[ChannelId, bool] = {}

    def saw(self, channel: ChannelId, small: bool) -> None:
        """A frame arrived, either in one part with its header or larger."""
        self._small[channel] = small

    def add(self, credit: Credit, took_s: float) -> None:
        """Frames were taken, which took this long: grant as many, or more, or fewer."""
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
        """The turn is over: send all pending grants."""
        while self._unsent:
            channel = self._unsent.pop()
            self._send_line(channel, self._lines[channel])

    def _send_line(self, channel: ChannelId, line: _Line) -> None:
        self._unsent.discard(channel)
        if line.waiting:
            frames, line.waiting = line.waiting, 0
            self._send(Credit(channel, line.generation, frames, line.most))
