"""Latency and throughput as seen at the sink, from the moment each record was due.

`Timed` wraps any sink. For every frame it notes when the frame came and when a few of its records
were due, and appends that to a file in one write: nothing is lost when the process is killed, and
the cost is some microseconds per frame. After the run `read_arrivals` puts the files together.

Waiting counts: a record that was due while the pipeline was down has been late since then. What
is written again after a failure counts again, with the latency it then has, as an observer of the
output topic would see it.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.sink import Committable, Permit, Sink, SinkShard, Writer

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.floating[Any]]]

SAMPLES = 16
"""The number of records sampled per frame; each counts as its share of the frame."""
ENDING = ".arrivals"
_ROW = np.dtype([("at_s", "<f8"), ("due_s", "<f8"), ("records", "<f8")])


class Timed(Sink):
    """Another sink, with every frame's arrival noted in `folder`.

    The column with the due times, in microseconds since 1970, is dropped before the sink: the
    output is then the same in every run and can be compared. With `keep` it stays.
    """

    def __init__(
        self, sink: Sink, folder: str | os.PathLike[str], due: str = "due_us", keep: bool = False
    ) -> None:
        self.sink = sink
        self.folder = os.path.abspath(folder)
        self.due = due
        self.keep = keep
        self.delivery = sink.delivery
        self.max_shards = sink.max_shards

    def open(self, shard: SinkShard) -> Writer:
        name = f"{shard.operator}-{shard.shard:04d}-{shard.generation}{ENDING}"
        writer = self.sink.open(shard)
        return _TimedWriter(writer, Path(self.folder) / name, self.due, self.keep)

    def check(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self.sink.check()

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        for file in Path(self.folder).glob(f"{operator}-*{ENDING}"):
            file.unlink()
        self.sink.start_fresh(pipeline, operator, store, replace)

    def results(self, pipeline: str, operator: str, store: str) -> list[Batch] | None:
        return self.sink.results(pipeline, operator, store)


class _TimedWriter(Writer):
    def __init__(self, inner: Writer, path: Path, due: str, keep: bool) -> None:
        self._inner = inner
        self._due = due
        self._keep = keep
        # Unbuffered: what was written is in the kernel's hands when the process is killed.
        self._file = path.open("ab", buffering=0)

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        frame = columns_of(batch, "Timed")
        if self._due not in frame.columns:
            raise UserError(
                f"Timed needs the due times in column '{self._due}', but there are only "
                f"{', '.join(frame.columns)}. Pace the source with es.Paced(source, rate, "
                f"due='{self._due}') and let the operators hand the column on."
            )
        now_s = time.time()
        if not self._keep:
            frame = frame.clone()  # of the frame, not of its data: another branch may hold it
            due_us = frame.drop_in_place(self._due).to_numpy()
        else:
            due_us = frame[self._due].to_numpy()
        # The middles of equal stretches of the frame; all of a small one.
        apart = max(len(due_us) // SAMPLES, 1)
        chosen = due_us[apart // 2 :: apart][:SAMPLES]
        rows = np.empty((len(chosen), 3), "<f8")
        rows[:, 0] = now_s
        rows[:, 1] = chosen
        rows[:, 1] *= 1e-6
        rows[:, 2] = len(due_us) / len(chosen)
        self._file.write(rows.tobytes())
        self._inner.write(frame)

    def prepare(self, checkpoint: int) -> Committable | None:
        return self._inner.prepare(checkpoint)

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        return self._inner.recover(transactions, permit)

    def adopt(self, transactions: Sequence[Committable]) -> Sequence[Committable]:
        return self._inner.adopt(transactions)

    def close(self) -> None:
        self._file.close()
        self._inner.close()


@dataclass(frozen=True)
class Latency:
    """Of many records, in seconds."""

    mean_s: float
    median_s: float
    p95_s: float
    p99_s: float
    deviation_s: float
    records: float


@dataclass(frozen=True)
class Curve:
    """Step by step of equal length: when each begins, and what came in it."""

    start_s: Floats
    step_s: float
    records_per_s: Floats
    mean_s: Floats
    """Mean latency; NaN where nothing came."""
    p99_s: Floats


@dataclass(frozen=True)
class Arrivals:
    """Arrivals in order of time. Each row represents `records` records."""

    at_s: Floats
    due_s: Floats
    records: Floats

    @property
    def latency_s(self) -> Floats:
        return self.at_s - self.due_s

    def between(self, start_s: float, stop_s: float) -> "Arrivals":
        """What came in this time."""
        return self._where((self.at_s >= start_s) & (self.at_s < stop_s))

    def due_between(self, start_s: float, stop_s: float) -> "Arrivals":
        """What was due in this time, whenever it came."""
        return self._where((self.due_s >= start_s) & (self.due_s < stop_s))

    def _where(self, chosen: Any) -> "Arrivals":
        return Arrivals(self.at_s[chosen], self.due_s[chosen], self.records[chosen])

    def latency(self) -> Latency:
        if not len(self.at_s):
            nan = float("nan")
            return Latency(nan, nan, nan, nan, nan, 0.0)
        latency_s, weights = self.latency_s, self.records
        mean_s = float(np.average(latency_s, weights=weights))
        spread = float(np.average((latency_s - mean_s) ** 2, weights=weights))
        median_s, p95_s, p99_s = quantiles(latency_s, weights, (0.5, 0.95, 0.99))
        return Latency(mean_s, median_s, p95_s, p99_s, spread**0.5, float(weights.sum()))

    def curve(self, step_s: float, start_s: float, stop_s: float) -> Curve:
        """By time of arrival."""
        steps = max(int(np.ceil((stop_s - start_s) / step_s)), 1)
        near = self.between(start_s, start_s + steps * step_s)
        place = ((near.at_s - start_s) / step_s).astype(np.int64).clip(0, steps - 1)
        records = np.bincount(place, near.records, steps)
        sums = np.bincount(place, near.records * near.latency_s, steps)
        mean_s = np.divide(sums, records, out=np.full(steps, np.nan), where=records > 0)
        p99_s = np.full(steps, np.nan)
        for step in np.unique(place):
            here = place == step
            [p99_s[step]] = quantiles(near.latency_s[here], near.records[here], (0.99,))
        starts = start_s + np.arange(steps, dtype=np.float64) * step_s
        return Curve(starts, step_s, records / step_s, mean_s, p99_s)


def quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> list[float]:
    """The smallest values that at least these shares of the weight do not exceed."""
    order = np.argsort(values)
    heaped = np.cumsum(weights[order])
    places = np.searchsorted(heaped, np.array(shares) * heaped[-1] * (1 - 1e-12))
    return [float(value) for value in values[order][np.minimum(places, len(values) - 1)]]


def read_arrivals(folder: str | os.PathLike[str], operator: str | None = None) -> Arrivals:
    """What all shards and generations of a `Timed` sink have noted in this folder."""
    pattern = f"{operator or ''}*{ENDING}"
    pieces = [np.empty(0, _ROW)]
    for path in sorted(Path(folder).glob(pattern)):
        data = path.read_bytes()
        # A row that was being written when the process was killed may be torn.
        pieces.append(np.frombuffer(data[: len(data) // _ROW.itemsize * _ROW.itemsize], _ROW))
    rows = np.concatenate(pieces)
    rows = rows[np.argsort(rows["at_s"], kind="stable")]
    return Arrivals(*(np.ascontiguousarray(rows[name]) for name in ("at_s", "due_s", "records")))


def wall_clock_s(monotonic_s: float) -> float:
    """A time on this machine's monotonic clock, such as a recovery report's, on its wall clock."""
    return time.time() - time.monotonic() + monotonic_s
