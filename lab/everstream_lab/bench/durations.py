"""What some work took of its thread and of its process, with what others on the machine took told apart."""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Durations:
    """Asked for twice, on the thread that works: `Durations.by_now().since(began)`."""

    wall_s: float
    queued_s: float
    """The thread was ready, and no processor was free: other programs on the machine contribute."""
    worker_processor_s: float

    @property
    def unqueued_s(self) -> float:
        return self.wall_s - self.queued_s

    @classmethod
    def by_now(cls) -> "Durations":
        return cls(time.monotonic(), _queued_s(), time.process_time())

    def since(self, began: "Durations") -> "Durations":
        return Durations(
            self.wall_s - began.wall_s,
            self.queued_s - began.queued_s,
            self.worker_processor_s - began.worker_processor_s,
        )


def busy(runs: Iterable[Durations]) -> float:
    """How many processors the process had in the middle one of these runs."""
    return statistics.median(took.worker_processor_s / took.wall_s for took in runs)


def _queued_s() -> float:
    """How long this thread has waited for a processor since it began; 0 where the system does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0
