"""What has happened in a run so far, over all its drivers, put together from their events.

A driver that is killed takes its own memory with it; the monitor keeps what it heard. The death
of a driver gets the same kind of recovery report as the death of a worker.
"""

from typing import Any

from everstream.cli.events import (
    EpochStable,
    Event,
    Failed,
    Finished,
    KillDelivered,
    Noted,
    Opened,
    Progressed,
    Started,
)
from everstream.core.coordinators.recovery_report import RecoveryBook, RecoveryReport
from everstream.core.ids import Epoch
from everstream.core.newest import Newest
from everstream.core.orders import Phase
from everstream.engine.reporting.listener import RunStatus


class SupervisorLog:
    """Follows a run from event to event."""

    def __init__(self) -> None:
        self.pipeline = ""
        self.store = ""
        self.checkpoints: Newest[dict[str, Any]] = Newest()
        self.notes: Newest[str] = Newest()
        self.drivers_lost = 0
        self.end: Finished | Failed | None = None
        self.last: Progressed | None = None
        self._drivers = RecoveryBook()
        self._workers: list[RecoveryReport] = []
        """Of the present driver; those of drivers before it are in `_earlier`."""
        self._earlier: list[RecoveryReport] = []
        self._restored: RunStatus | None = None
        self._shown_once: tuple[str, ...] = ()
        self._killed_s: float | None = None
        """When the driver was killed on purpose; otherwise only its end is known."""
        self._restoring = False

    def hear(self, event: Event) -> None:
        match event:
            case Opened(pipeline=pipeline, store=store):
                self.pipeline, self.store = pipeline, store
            case Started(at_s=at_s, shown_once=shown_once):
                self._shown_once = shown_once
                self._drivers.restarted(("driver",), at_s)
            case KillDelivered(of_driver=True, at_s=at_s):
                self._killed_s = at_s
            case Progressed():
                self._progressed(event)
            case EpochStable(checkpoint=checkpoint):
                self.checkpoints.append(checkpoint)
            case Noted(text=text):
                self.notes.append(text)
            case Finished() | Failed():
                self.end = event
                if self.last is not None:
                    self._drivers.ended(self.last.at_s)

    def driver_died(self, how: str, now_s: float) -> None:
        self.drivers_lost += 1
        goal = dict(self.last.snapshot.totals) if self.last is not None else {}
        read = self.last.snapshot.records_read if self.last is not None else 0
        for name, count in self._drivers.goal().items():
            goal[name] = max(count, goal.get(name, 0))
        self._drivers.open(
            RecoveryReport(
                what=f"driver ({how})",
                shards=("driver",),
                injected=self._killed_s is not None,
                detected_s=now_s,
                failed_s=self._killed_s,
                records_read=max(read, self._drivers.records_read()),
                goal=goal,
            )
        )
        self._earlier += self._workers
        self._workers = []
        self._restored, self._restoring = None, True
        self._killed_s = None
        self.end = None

    @property
    def driver_recoveries(self) -> list[RecoveryReport]:
        """Those of drivers alone."""
        return self._drivers.reports

    @property
    def recoveries(self) -> list[RecoveryReport]:
        found = [*self._earlier, *self._workers, *self._drivers.reports]
        return sorted(found, key=lambda report: report.detected_s)

    def to_json(self, outcome: str, exit_code: int) -> dict[str, Any]:
        """The result of the whole command, whatever became of it."""
        result: dict[str, Any] = {"pipeline": self.pipeline, "store": self.store}
        if isinstance(self.end, Finished):
            result.update(self.end.result)
        elif isinstance(self.end, Failed):
            result["error"] = self.end.text
        return {
            **result,
            "outcome": outcome,
            "exit_code": exit_code,
            "checkpoints": self.checkpoints,
            "checkpoint_count": self.checkpoints.total,
            "recoveries": [report.to_json() for report in self.recoveries],
            "drivers_lost": self.drivers_lost,
            "notes": self.notes,
        }

    def _progressed(self, event: Progressed) -> None:
        self.last = event
        snapshot = event.snapshot
        self._workers = snapshot.recoveries
        if snapshot.phase is Phase.RESTORING:
            self._restored = snapshot
        if snapshot.phase in (Phase.RUNNING, Phase.FINISHING, Phase.DONE):
            if self._restoring:
                self._restoring = False
                restored = self._restored or snapshot
                shown = {sink: restored.totals.get(sink, 0) for sink in self._shown_once}
                epoch = Epoch(snapshot.epoch)
                self._drivers.resumed(epoch, restored.records_read, event.at_s, shown)
            self._drivers.progressed(snapshot.totals, snapshot.records_read, event.at_s)
