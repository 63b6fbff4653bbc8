"""What a run's checkpoints came to, over all shards."""

from dataclasses import dataclass
from typing import Any

from everstream.core.checkpoint_record import CheckpointRecord


@dataclass
class CheckpointTally:
    """Durable checkpoints of single shards, whichever of them were ever gone back to."""

    regular: int = 0
    forced: int = 0
    size_bytes: int = 0
    log_bytes: int = 0
    """What was sent between checkpoints and logged with them."""
    capture_s: float = 0.0
    upload_s: float = 0.0

    def add(self, record: CheckpointRecord) -> None:
        if record.forced:
            self.forced += 1
        else:
            self.regular += 1
        self.size_bytes += record.size_bytes
        self.capture_s += record.capture_s
        self.upload_s += record.upload_s

    def to_json(self) -> dict[str, Any]:
        count = max(1, self.regular + self.forced)
        return {
            "regular": self.regular,
            "forced": self.forced,
            "size_bytes": self.size_bytes,
            "log_bytes": self.log_bytes,
            "capture_ms": round(1000 * self.capture_s / count, 3),
            "upload_ms": round(1000 * self.upload_s / count, 3),
        }
