"""The history of a run over all its drivers, assembled from their messages.

A killed driver loses its memory; the supervisor keeps its messages. The death of a driver gets the same
kind of recovery report as the death of a worker.
"""

from typing import Any

from everstream.cli.views.messages import (
    DriverFailed,
    DriverFinished,
    EventReported,
    Message,
    Opened,
)
from everstream.core.checkpointing.newest import Newest
from everstream.core.coordinators.recovery_report import RecoveryBook, RecoveryReport
from everstream.core.ids import Epoch
from everstream.core.orders import Phase
from everstream.engine.result import checkpoint_json
from everstream.events import (
    EpochStable,
    Killing,
    Progressed,
    RunEvent,
    RunStarted,
    RunStatus,
    sentence,
)


class SupervisorLog:
    def __init__(self) -> None:
        self.pipeline = ""
        self.store = ""
        self.checkpoints: Newest[dict[str, Any]] = Newest()
        self.notes: Newest[str] = Newest()
        self.drivers_lost = 0
        self.end: DriverFinished | DriverFailed | None = None
        self.status: RunStatus | None = None
        self._status_s = 0.0
        """When the status was sent."""
        self._drivers = RecoveryBook()
        self._workers: list[RecoveryReport] = []
        """Those of the current driver; `_earlier` has those of earlier drivers."""
        self._earlier: list[RecoveryReport] = []
        self._restored: RunStatus | None = None
        self._shown_once: tuple[str, ...] = ()
        self._killed_s: float | None = None
        """When the driver was killed on purpose; None if only its end is known."""
        self._restoring = False

    def hear(self, message: Message) -> None:
        match message:
            case Opened(pipeline=pipeline, store=store):
                self.pipeline, self.store = pipeline, store
            case EventReported(event=event, at_s=at_s):
                self._hear_event(event, at_s)
            case DriverFinished() | DriverFailed():
                self.end = message
                if self.status is not None:
                    self._drivers.ended(self._status_s)

    def _hear_event(self, event: RunEvent, at_s: float) -> None:
        text = sentence(event)
        if text is not None:
            self.notes.append(text)
        match event:
            case RunStarted(shown_once=shown_once):
                self._shown_once = shown_once
                self._drivers.restarted(("driver",), at_s)
            case Killing(of_driver=True):
                self._killed_s = at_s
            case Progressed(status=run_status):
                self._progressed(run_status, at_s)
            case EpochStable():
                self.checkpoints.append(checkpoint_json(event))

    def driver_died(self, how: str, now_s: float) -> None:
        self.drivers_lost += 1
        goal = dict(self.status.totals) if self.status is not None else {}
        read = self.status.records_read if self.status is not None else 0
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
        return self._drivers.reports

    @property
    def recoveries(self) -> list[RecoveryReport]:
        reports = [*self._earlier, *self._workers, *self._drivers.reports]
        return sorted(reports, key=lambda report: report.detected_s)

    def to_json(self, outcome: str, exit_code: int) -> dict[str, Any]:
        """The result of the whole command, for every outcome."""
        result: dict[str, Any] = {"pipeline": self.pipeline, "store": self.store}
        if isinstance(self.end, DriverFinished):
            result.update(self.end.result)
        elif isinstance(self.end, DriverFailed):
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

    def _progressed(self, run_status: RunStatus, at_s: float) -> None:
        self.status, self._status_s = run_status, at_s
        self._workers = run_status.recoveries
        if run_status.phase is Phase.RESTORING:
            self._restored = run_status
        if run_status.phase in (Phase.RUNNING, Phase.FINISHING, Phase.DONE):
            if self._restoring:
                self._restoring = False
                restored = self._restored or run_status
                shown = {sink: restored.totals.get(sink, 0) for sink in self._shown_once}
                epoch = Epoch(run_status.epoch)
                self._drivers.resumed(epoch, restored.records_read, at_s, shown)
            self._drivers.progressed(run_status.totals, run_status.records_read, at_s)
