"""Input of an operator that waits for more, because the operator costs as much for one record as for many.

At everyday rates a source has a few records every few milliseconds, and an operator on columns takes as
long for three of them as for a thousand. Windows emit nothing before one of them ends, so their input
waits in front of them until event time reaches such an end, until there is enough of it, or until the
first record has waited for `MOST_LATENCIES` times the run's latency. The watermark waits with the records.

Waiting input is not part of a checkpoint. It is released before the shard takes one, and only shards that
read a source and have no message log gather: a log must be able to make the same frames again.
"""

from dataclasses import dataclass, field

from everstream.pipeline.batch import Batch, joined
from everstream.pipeline.event_time.lateness import RecordWatermarks
from everstream.pipeline.times import NO_WATERMARK

MOST_LATENCIES = 20
"""Input waits for at most this many times the latency."""
ENOUGH = 4_096
"""Records that are released at once: with more, an operator costs hardly less for each."""


@dataclass
class Gathered:
    """The input of one operator that waits, in order."""

    batches: list[Batch] = field(default_factory=list)
    judged: list[RecordWatermarks] = field(default_factory=list)
    watermark: int = NO_WATERMARK
    """The watermark to pass on after the records."""
    records: int = 0
    began_s: float = 0.0
    born_s: float = 0.0
    """When the first record came in."""

    def __bool__(self) -> bool:
        return bool(self.batches)

    def fits(self, batch: Batch, judged: RecordWatermarks) -> bool:
        """Whether it can be joined with the batches that wait."""
        if not self.batches:
            return True
        alike = judged.like(self.judged[0])
        if isinstance(batch, list):
            return alike and isinstance(self.batches[0], list)
        return alike and getattr(self.batches[0], "schema", None) == batch.schema

    def add(self, batch: Batch, judged: RecordWatermarks, now_s: float, born_s: float) -> None:
        if not self.batches:
            self.began_s, self.born_s = now_s, born_s
        self.batches.append(batch)
        self.judged.append(judged)
        self.records += len(batch)

    def whole(self) -> tuple[Batch, RecordWatermarks]:
        """All batches as one, with the watermarks of its records."""
        return joined(self.batches)[0], RecordWatermarks.joined(self.judged)
