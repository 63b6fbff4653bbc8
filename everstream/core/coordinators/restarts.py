"""What follows a failure, and how many failures are too many.

A run survives failures of workers and shards (`Restarts`), and checkpoints that could not be saved
(`FailedCheckpoints`), but not for ever: each kind has a budget, and an error that comes back in the
same way from the same checkpoint ends the run at once (`Repeats`).
"""

import re
from collections import deque
from collections.abc import Sequence

from everstream.core.coordinators.progress import RunProgress
from everstream.core.coordinators.recovery_report import RecoveryBook, RecoveryReport
from everstream.core.ids import Epoch, ShardId, TaskNumber, WorkerId
from everstream.core.orders import Policy
from everstream.errors import EverstreamError, OperatorError, RunFailed

TOGETHER_S = 1.0
"""Different workers that fail within this time have failed for one cause."""


class RestartBudget:
    """At most `limit` failures in a window of time; failures that we inject ourselves are free.

    Workers that fail together, because a machine died or a network was cut, count once.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit = limit
        self.window_s = window_s
        self._times_s: deque[float] = deque()
        self._together: set[WorkerId] = set()
        """The workers of the newest failure."""

    def spend(self, now_s: float, worker: WorkerId | None = None) -> bool:
        """Count a failure; False if it exceeds the budget."""
        while self._times_s and now_s - self._times_s[0] > self.window_s:
            self._times_s.popleft()
        if not self._is_part_of_the_last(now_s, worker):
            self._times_s.append(now_s)
            self._together.clear()
        if worker is not None:
            self._together.add(worker)
        return len(self._times_s) <= self.limit

    def _is_part_of_the_last(self, now_s: float, worker: WorkerId | None) -> bool:
        if worker is None or worker in self._together or not self._together:
            return False
        return bool(self._times_s) and now_s - self._times_s[-1] < TOGETHER_S


KEPT = 100
_ADDRESS = re.compile(r"0x[0-9a-f]+")
"""The memory address of an object: it is part of its text, and differs each time."""


class Repeats:
    """The errors since the last stable epoch that would recur."""

    def __init__(self) -> None:
        self._epoch = Epoch(0)
        self._seen: set[tuple[str, ...]] = set()

    def has_seen(self, error: EverstreamError, epoch: Epoch) -> bool:
        """Whether the same error occurred before, and nothing has become stable since."""
        if epoch != self._epoch or len(self._seen) >= KEPT:
            self._seen.clear()
        self._epoch = epoch
        if not error.will_recur:
            return False
        place = _place(error)
        seen = place in self._seen
        self._seen.add(place)
        return seen


def _place(error: EverstreamError) -> tuple[str, ...]:
    """What two occurrences of the same error have in common, whichever shard raised it first."""
    if isinstance(error, OperatorError):
        texts: tuple[str, ...] = (error.operator, error.record, error.traceback)
    else:
        texts = (type(error).__name__, error.message)
    return tuple(_ADDRESS.sub("0x", text) for text in texts)


_DETAILS = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
"""What differs between failures of the same cause: names of files, numbers."""


class FailedCheckpoints:
    """Counts the failed checkpoints in a row."""

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._in_a_row: dict[object, int] = {}
        """Owner of the checkpoint -> how many have failed since its last good one."""
        self._last: dict[object, int] = {}
        self._causes: set[str] = set()

    def failed(self, number: int, cause: str, owner: object = None) -> bool:
        """Checkpoint `number` failed; True if that is to be reported.

        owner: the shard that takes the checkpoint, where shards take them one by one.
        """
        if self._last.get(owner) != number:  # several shards may fail at one epoch
            self._last[owner] = number
            self._in_a_row[owner] = self._in_a_row.get(owner, 0) + 1
        alike = _DETAILS.sub("", cause)
        is_news = alike not in self._causes
        self._causes.add(alike)
        return is_news

    def succeeded(self, owner: object = None) -> int:
        """A checkpoint is good. Returns how many had failed in a row, once none is failing."""
        count = self._in_a_row.pop(owner, 0)
        self._last.pop(owner, None)
        if not count or self._in_a_row:
            return 0
        self._causes = set()
        return count

    def too_many(self, cause: str, stable: int) -> RunFailed | None:
        """The error that ends the run, if more have failed in a row than it tolerates."""
        count = max(self._in_a_row.values(), default=0)
        if count <= self._tolerable:
            return None
        back = f"epoch {stable}, which is safe in the store" if stable else "the start"
        return RunFailed(
            f"{count} checkpoints in a row have failed, and tolerable_checkpoint_failures "
            f"(--tolerable-checkpoint-failures) is {self._tolerable}. The last cause: {cause}. Fix "
            f"that and run again: the next run resumes from {back}."
        )


FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
PAUSE_GROWTH = 4
CALM_S = 60.0
"""After this long without an error of a shard, the next one counts as the first again."""


class BackOff:
    """How long to wait before a shard that raised an error is retried.

    The first retry is immediate. Then the pauses grow, so that the default budget of three restarts
    outlasts a database that is down for some seconds.
    """

    def __init__(self) -> None:
        self._next_s = 0.0
        self._calm_from_s = 0.0

    def pause_s(self, now_s: float) -> float:
        """It has failed now. Returns the pause before the next attempt."""
        if now_s >= self._calm_from_s:
            self._next_s = 0.0
        pause_s = self._next_s
        self._next_s = min(LONGEST_PAUSE_S, PAUSE_GROWTH * pause_s) or FIRST_PAUSE_S
        self._calm_from_s = now_s + pause_s + CALM_S
        return pause_s


class Restarts:
    """The failures of a run. Those we inject ourselves do not count against the pipeline."""

    def __init__(self, policy: Policy, progress: RunProgress) -> None:
        self.book = RecoveryBook()
        self._policy = policy
        self._progress = progress
        self._budget = RestartBudget(policy.max_restarts, policy.restart_window_s)
        self.back_off = BackOff()
        self.repeats = Repeats()
        self._injected: dict[WorkerId, float] = {}

    def follow(self, progress: RunProgress) -> None:
        """The run has another plan from now on: count its progress."""
        self._progress = progress

    def injected(self, worker: WorkerId, now_s: float) -> None:
        """We are about to kill this worker ourselves."""
        self._injected[worker] = now_s

    def open(
        self, what: str, shards: Sequence[ShardId], worker: WorkerId | None, now_s: float
    ) -> RecoveryReport:
        """Begin the report of a failure, with the progress that the run has to reach again."""
        killed_s = self._injected.pop(worker, None) if worker is not None else None
        goal = self._progress.totals()
        for name, count in self.book.goal().items():
            goal[name] = max(count, goal.get(name, 0))
        report = RecoveryReport(
            what=what,
            shards=tuple(str(shard) for shard in shards),
            injected=killed_s is not None,
            detected_s=now_s,
            failed_s=killed_s,
            records_read=max(self._progress.records_read(), self.book.records_read()),
            goal=goal,
        )
        self.book.open(report)
        return report

    def too_many(
        self,
        report: RecoveryReport,
        worker: WorkerId | None,
        error: EverstreamError | None,
        now_s: float,
    ) -> RunFailed | None:
        """The error that ends the run, if this failure exceeds the budget."""
        if report.injected or self._budget.spend(now_s, worker):
            return None
        limit, window_s = self._policy.max_restarts, self._policy.restart_window_s
        message = f"{report.what}: more than {limit} failures within {window_s:g} s"
        return RunFailed(message, error)

    def start_failed(
        self, process: TaskNumber, error: EverstreamError, epoch: Epoch, now_s: float
    ) -> RunFailed | None:
        """A worker could not start. Returns the error that ends the run, if over the budget."""
        if self.repeats.has_seen(error, epoch):
            return RunFailed(f"worker {process} could not start, twice for the same reason", error)
        if self._budget.spend(now_s):
            return None
        message = f"worker {process} could not start, more than {self._policy.max_restarts} times"
        return RunFailed(message, error)

    def progressed(self, now_s: float) -> None:
        """Running shards have progressed: the run may have caught up with a failure."""
        if self.book.unfinished:
            self.book.progressed(self._progress.totals(), self._progress.records_read(), now_s)
