"""Event time at the inputs of a shard: the slowest input determines it."""

from collections.abc import Collection, Mapping, Sequence

from everstream.core.ids import ChannelId
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK


class InputTimes:
    """One watermark per input. Feedback inputs do not count: they would wait for themselves."""

    def __init__(self, inputs: Sequence[ChannelId], feedback: Collection[ChannelId]) -> None:
        self.watermarks = dict.fromkeys(inputs, NO_WATERMARK)
        self.lowest = NO_WATERMARK
        self._timed = [channel for channel in inputs if channel not in feedback]

    def heard(self, channel: ChannelId, watermark: int) -> int | None:
        """An input has reached this watermark. Returns the lowest of all, if that has advanced."""
        if watermark <= self.watermarks[channel]:
            return None
        self.watermarks[channel] = watermark
        lowest = self._lowest()
        if lowest <= self.lowest:
            return None
        self.lowest = lowest
        return lowest

    def saved(self, without: Collection[ChannelId]) -> dict[str, int]:
        """For a checkpoint, of the inputs that have a watermark."""
        return {
            str(channel): watermark
            for channel, watermark in self.watermarks.items()
            if watermark != NO_WATERMARK and channel not in without
        }

    def restore(self, saved: Mapping[str, int], ended: Collection[ChannelId]) -> None:
        for channel in self.watermarks:
            watermark = saved.get(str(channel), NO_WATERMARK)
            self.watermarks[channel] = END_OF_TIME if channel in ended else watermark
        self.lowest = self._lowest()

    def _lowest(self) -> int:
        return min((self.watermarks[channel] for channel in self._timed), default=NO_WATERMARK)
