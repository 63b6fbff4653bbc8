"""What an execution consists of: each setting of a range, each repeat, one run after the other."""

from dataclasses import asdict, dataclass
from typing import Any

from everstream.apps.cycle.benchmarks import Benchmark
from everstream.apps.cycle.settings import Settings
from everstream.apps.lookup import application_at


@dataclass(frozen=True)
class Planned:
    """One run, as it is handed to the process that performs it."""

    number: int
    benchmark: str
    application: str
    interface: str
    size: str
    workers: int
    batch: int
    repeat: int
    settings: Settings

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> "Planned":
        return cls(**{**body, "settings": Settings.from_json(body["settings"])})


def plan(benchmark: Benchmark, first: int = 0) -> list[Planned]:
    """All runs of a benchmark. Repeats are outermost, so that a slow hour of the machine does not
    fall on one setting alone."""
    benchmark.check()
    settings = benchmark.settings
    usual = application_at(benchmark.application).batch
    # One worker is all a sequential program has, whatever the range says.
    counts = (1,) if benchmark.interface == "sequential" else settings.worker_counts()
    points = [(workers, batch) for workers in counts for batch in settings.batch_sizes(usual)]
    return [
        Planned(
            first + number,
            benchmark.name,
            benchmark.application,
            benchmark.interface,
            benchmark.size,
            workers,
            batch,
            repeat,
            settings,
        )
        for number, (repeat, (workers, batch)) in enumerate(
            (repeat, point) for repeat in range(settings.repeats) for point in points
        )
    ]
