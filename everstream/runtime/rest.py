"""What a source has read and its shard has not processed: a batch is taken in parts.

The offset a reader reports is that after the batch, so what is left of it belongs to every
checkpoint that is taken before it is used up.
"""

from everstream.core.frames import even_part
from everstream.pipeline.batch import Batch
from everstream.runtime.payload import BatchPayload


class Rest:
    """One source shard's batch under way."""

    def __init__(self, saved: bytes | None = None) -> None:
        self._batch: Batch = BatchPayload(encoded=saved).batch if saved is not None else []
        self.start = 0
        """Records of the batch that were taken."""

    def __bool__(self) -> bool:
        return self.start < len(self._batch)

    def fill(self, batch: Batch) -> None:
        """The next batch was read."""
        self._batch, self.start = batch, 0

    def take(self, most: int) -> Batch:
        """The next part, of at most so many records."""
        batch, start = self._batch, self.start
        left = len(batch) - start
        if left <= most:
            self._batch, self.start = [], 0
            return batch[start:] if start else batch
        self.start = start + even_part(left, most)
        return batch[start : self.start]

    def saved(self) -> bytes:
        return bytes(BatchPayload(self._batch[self.start :]).encoded)
