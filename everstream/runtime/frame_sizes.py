"""How many records a step may have so that none of the frames it becomes is too large.

A receiver says with each grant how many records a frame to it should have. How many records of a
step go to it, a fraction or several times those that went in, is learned while running.
"""

from everstream.core.ids import ChannelId
from everstream.runtime.pace import FIRST, UNLIMITED

_SMOOTHING = 0.3


class FrameSizes:
    """The wishes of the receivers of one outlet."""

    def __init__(self) -> None:
        self.most = FIRST
        """Records the next step may have. Until a receiver was heard, few."""
        self._wished: dict[ChannelId, int] = {}
        """Only those who want small frames."""
        self._shares: dict[ChannelId, float] = {}
        """How many records each of them gets for one that goes in."""

    def wish(self, channel: ChannelId, records: int) -> None:
        """A receiver wants frames of so many records (0: as they come)."""
        if self._wished.get(channel, 0) == records and self.most != FIRST:
            return
        if records:
            self._wished[channel] = records
            self._shares.setdefault(channel, 1.0)
        elif channel in self._wished:
            del self._wished[channel], self._shares[channel]
        self._settle()

    @property
    def learning(self) -> bool:
        """Whether it matters how much goes where."""
        return bool(self._wished)

    def sent(self, records: int, to: dict[ChannelId, int]) -> None:
        """A step with so many records has become frames of these sizes."""
        if not records:
            return
        changed = False
        for channel, share in self._shares.items():
            now = to.get(channel, 0) / records
            if now != share:
                self._shares[channel] = share + _SMOOTHING * (now - share)
                changed = True
        if changed:
            self._settle()

    def _settle(self) -> None:
        self.most = UNLIMITED
        for channel, wished in self._wished.items():
            share = self._shares[channel]
            if share * UNLIMITED > wished:
                self.most = max(1, min(self.most, int(wished / share)))
