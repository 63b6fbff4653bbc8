"""Writes a run's history to its store from a separate thread: the run never waits for it.

If the store is slow, unwritten samples are dropped first. If it accepts nothing, there is one
warning, and the run continues.
"""

import threading
import time
from collections.abc import Callable

from everstream.errors import EverstreamError, said
from everstream.events import (
    DriverLost,
    MetricsSampled,
    PlanChanged,
    RunEnded,
    RunEvent,
    RunStarted,
)
from everstream.observability.history.run_view import URGENT
from everstream.observability.history.stored import (
    BLOB_BYTES,
    LIVE_ONLY,
    blob_name,
    encoded,
    prune,
    shortened,
    with_plan,
)
from everstream.state.blobs import Blobs

WRITE_EVERY_S = 5.0
URGENT_AFTER_S = 0.5
SAMPLE_EVERY_S = 5.0
SHARDS_PER_S = 10.0
"""With many shards samples are further apart, so that a history reaches as far back."""
WAITING = 5_000
"""The maximum number of events that wait for a slow store."""
LEAVE_PATIENCE_S = 5.0


LAST = (RunEnded, DriverLost)
"""Nothing is measured after these, so the last sample before them is kept."""


class HistoryWriter:
    def __init__(
        self,
        blobs: Blobs,
        on_trouble: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        blob_bytes: int = BLOB_BYTES,
    ) -> None:
        self._blobs = blobs
        self._on_trouble = on_trouble
        self._clock = clock
        self._blob_bytes = blob_bytes
        self._lock = threading.Lock()
        self._waiting: list[RunEvent] = []
        self._run: RunStarted | None = None
        """The newest one: a writer may outlive several drivers."""
        self._first: RunStarted | None = None
        self._blob: list[RunEvent] = []
        self._number = 0
        self._sampled_at = 0.0
        self._passed_over: MetricsSampled | None = None
        """The newest sample, if it came too soon after the previous one."""
        self._troubled = False
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="everstream-history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, event: RunEvent) -> None:
        """Queue an event. Returns at once."""
        if isinstance(event, LIVE_ONLY):
            return
        if isinstance(event, MetricsSampled):
            due = self._due(event)
            self._passed_over = None if due else event
            if not due:
                return
        with self._lock:
            if isinstance(event, LAST) and self._passed_over is not None:
                self._waiting.append(self._passed_over)
                self._passed_over = None
            if isinstance(event, RunStarted):
                self._run = event
                self._first = self._first or event
            elif isinstance(event, PlanChanged) and self._run is not None:
                self._run = with_plan(self._run, event)
            self._waiting.append(shortened(event))
            if len(self._waiting) > WAITING:
                kept: list[RunEvent] = [
                    e for e in self._waiting if not isinstance(e, MetricsSampled)
                ]
                self._waiting = kept[-WAITING // 2 :]
        if isinstance(event, URGENT):
            self._wake.set()

    def stop(self) -> None:
        """Write the rest; does not wait long for a slow store."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=LEAVE_PATIENCE_S)

    def flush(self) -> None:
        """Write everything queued so far."""
        with self._lock:
            first = self._first
            if self._run is None or first is None:
                return  # they wait for the event of their run
            events, self._waiting = self._waiting, []
        if not events:
            return
        if not self._blob:
            begins = any(isinstance(event, RunStarted) for event in events)
            self._blob = [] if begins else [self._run]
        self._blob += events
        if len(self._blob) > WAITING:  # the store has accepted nothing for a long time
            self._blob = [self._run, *self._blob[-WAITING // 2 :]]
        data = encoded(self._blob)
        self._blobs.write(blob_name(first.at, first.run, self._number), data)
        if len(data) > self._blob_bytes:
            self._number, self._blob = self._number + 1, []
            prune(self._blobs, self._clock())

    def _due(self, sample: MetricsSampled) -> bool:
        apart_s = max(SAMPLE_EVERY_S, len(sample.shards) / SHARDS_PER_S)
        if sample.phase == "running" and sample.at - self._sampled_at < apart_s:
            return False
        self._sampled_at = sample.at
        return True

    def _work(self) -> None:
        self._try(lambda: prune(self._blobs, self._clock()))
        while not self._stopped:
            if self._wake.wait(WRITE_EVERY_S) and not self._stopped:
                time.sleep(URGENT_AFTER_S)  # write related events together
            self._wake.clear()
            self._try(self.flush)
        self._try(self.flush)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._troubled = False
        except (EverstreamError, TypeError, ValueError) as error:  # or not representable in JSON
            if not self._troubled:
                self._troubled = True
                self._on_trouble(
                    f"the history of this run cannot be written at the moment: {said(error)}"
                )
