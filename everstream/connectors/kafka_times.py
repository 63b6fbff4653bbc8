"""Event time by the timestamps of Kafka records: a watermark for each partition, the lowest counts.

Partitions are read at different speeds, so the greatest time seen in one says nothing about the
others. A partition that has been read to its end and gives nothing for a while counts as being at
the present, less that while: what comes next will have a time of its own day.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from everstream.connectors.kafka_offsets import Partition
from everstream.pipeline.times import NO_WATERMARK


class PartitionTimes:
    """What is known of the time in each partition of a shard."""

    def __init__(self, lateness_us: int | None, idle_after_s: float | None) -> None:
        self.on = lateness_us is not None
        self._lateness_us = lateness_us or 0
        self._idle_after_s = idle_after_s
        self.greatest: dict[Partition, int] = {}
        self._silent_since_s: dict[Partition, float] = {}
        self._wall_s: Callable[[], float] = lambda: 0.0
        self._steady_s: Callable[[], float] = lambda: 0.0
        self._began_s: float | None = None

    def keep_time(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        self._wall_s, self._steady_s = wall_s, steady_s

    def restore(self, greatest: Mapping[Partition, int]) -> None:
        self.greatest = {p: time for p, time in greatest.items() if time != NO_WATERMARK}
        self._silent_since_s = {}
        self._began_s = None

    def seen(
        self, partitions: Iterable[Partition], of_each: list[Partition], ms: list[int]
    ) -> None:
        """Records of these partitions have come, with these times."""
        if len(found := list(partitions)) == 1:
            self._note(found[0], max(ms))
            return
        numbers = {partition: number for number, partition in enumerate(found)}
        which = np.fromiter(map(numbers.__getitem__, of_each), np.int64, len(of_each))
        times = np.full(len(found), -1, np.int64)
        np.maximum.at(times, which, np.asarray(ms, np.int64))
        for partition, number in numbers.items():
            self._note(partition, int(times[number]))

    def _note(self, partition: Partition, ms: int) -> None:
        self._silent_since_s.pop(partition, None)
        if ms >= 0:
            before = self.greatest.get(partition, NO_WATERMARK)
            self.greatest[partition] = max(before, ms * 1000)

    def at_end(self, partition: Partition) -> None:
        """All there is of a partition has been given."""
        self._silent_since_s.setdefault(partition, self._steady_s())

    def watermark(self, partitions: Collection[Partition]) -> int:
        """The time of the slowest of these, which are all that may give more."""
        if not self.on:
            return NO_WATERMARK
        if self._idle_after_s is None:
            return min((self._of(p) for p in partitions), default=NO_WATERMARK)
        now_s = self._steady_s()
        if self._began_s is None:
            self._began_s = now_s
        since = self._silent_since_s
        present = int((self._wall_s() - self._idle_after_s) * 1e6) - self._lateness_us
        if not partitions:
            return present if now_s - self._began_s >= self._idle_after_s else NO_WATERMARK
        return min(
            max(self._of(p), present)
            if p in since and now_s - since[p] >= self._idle_after_s
            else self._of(p)
            for p in partitions
        )

    def _of(self, partition: Partition) -> int:
        time = self.greatest.get(partition)
        return NO_WATERMARK if time is None else time - self._lateness_us
