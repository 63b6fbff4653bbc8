"""How well a catch-up can be predicted: the backlog formula against a run that really failed.

Capacity is measured first, in a run at full speed without failures; then a paced run is killed
once, and from its rate, its checkpoints and its outage the formula says how long it takes until
the backlog is gone. The probe at the end of the pipeline says how long it took.
"""

import time

from everstream.connectors.generate.sources import Range
from everstream.engine.reporting.listener import Listener
from everstream.engine.run import run
from everstream.events import Progressed, RunEvent
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.stream import Pipeline
from everstream.planning.analytic import Backlog
from everstream_lab.bench.recovery import restart
from everstream_lab.bench.report import Figure, Progress, Report, Target, exactness


class _Watch(Listener):
    """Writes down how many records had been served when; until the first time all were."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def on_event(self, event: RunEvent) -> None:
        served = event.status.totals.get("serve", 0) if isinstance(event, Progressed) else 0
        if served and (not self.seen or served > self.seen[-1][1]):
            self.seen.append((time.monotonic(), served))


def capacity_of(service_s: float, seconds: float, master: str) -> float:
    """Records per second at full speed, measured from the first to the last record."""
    records = int(2 / service_s * seconds)
    watch = _Watch()
    pipeline = Pipeline("capacity")
    numbers = pipeline.source(Range(records, batch=500), name="numbers")
    restart.counting(numbers, service_s).collect()
    run(pipeline, checkpoint=Coordinated(every=1.0), master=master, workers=2, listener=watch)
    (first_s, first), (last_s, last) = watch.seen[0], watch.seen[-1]
    return (last - first) / (last_s - first_s)


def measure(
    *,
    rate: float = 10_000,
    utilisation: float = 0.6,
    master: str = "local[2]",
    progress: Progress = lambda text: None,
) -> Report:
    """Predict the catch-up after one kill at this utilisation, then look."""
    service_s = 2 * utilisation / rate  # two shards share the records
    progress("capacity, at full speed")
    capacity = capacity_of(service_s, 4.0, master)
    seen = restart.measure(
        rate=rate,
        seconds=12.0,
        kill_after_s=4.0,
        service_s=service_s,
        master=master,
        progress=progress,
    )
    outage_s = seen.recovery["restored_ms"] / 1000
    replayed = seen.recovery["records_replayed"]
    backlog = Backlog(
        rate_per_s=rate,
        capacity_per_s=capacity,
        interval_s=1.0,
        commit_s=seen.pause_s,
        outage_s=outage_s,
    )
    predicted_s = backlog.catch_up_s(replayed / rate)
    measured_s = seen.caught_up_s - outage_s
    figures = [
        Figure("capacity", round(capacity, 1), "records/s"),
        Figure("outage", round(outage_s, 3), "s"),
        Figure("records_replayed", replayed),
        Figure("predicted", round(predicted_s, 3), "s"),
        Figure("measured", round(measured_s, 3), "s"),
        # Predicted against measured, from the restore until the backlog was gone.
        Figure("difference", round(predicted_s / measured_s - 1, 3), "", Target("within", 0.25)),
        *exactness(seen.lost, seen.duplicated),
    ]
    return Report("prediction", figures, {"rate_per_s": rate, "utilisation": utilisation})
