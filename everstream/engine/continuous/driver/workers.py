"""The processes of a run, as its driver needs them; each engine has its own way to place them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from everstream.core.ids import TaskNumber
from everstream.engine.continuous.worker.worker import WorkerTask
from everstream.errors import EnvironmentFault, RunFailed


@dataclass(frozen=True)
class StartupFailure:
    """A task that failed before its worker had said hello."""

    number: TaskNumber
    attempt: int
    error: EnvironmentFault


class Workers(Protocol):
    """One process for each worker and each spare. A process that ends too early is started again.

    A process has the number of its task, which all its attempts share, and the id of this attempt,
    which no other process of the run has.
    """

    def start(self, task: WorkerTask, processes: int) -> None:
        """Start the processes; each calls `task.work` with its number, attempt and id."""
        ...

    @property
    def ended(self) -> bool:
        """Whether no process will be started any more, although `leave` was not called."""
        ...

    def failure(self) -> RunFailed:
        """The error for workers that have ended before the pipeline."""
        ...

    def is_running(self, number: TaskNumber, task: int) -> bool:
        """Whether this attempt was started under this number: others get no key."""
        ...

    def failed_starts(self, heard: Mapping[TaskNumber, int], now_s: float) -> list[StartupFailure]:
        """Attempts that ended without a message; `heard` has the newest known one of each task."""
        ...

    def kill(self, task: int) -> None:
        """End a silent process, so that another takes its place."""
        ...

    def leave(self, told: bool) -> None:
        """The run is over. Workers that were told leave on their own; the others are ended."""
        ...
