"""What follows a failure, whoever goes back: its report, and whether it was one too many."""

from collections.abc import Sequence

from everstream.core.coordinators.headway import Headway
from everstream.core.coordinators.recovery_report import RecoveryBook, RecoveryReport
from everstream.core.coordinators.repeats import Repeats
from everstream.core.coordinators.restart_budget import RestartBudget
from everstream.core.ids import Epoch, HostId, ShardId, TaskNumber
from everstream.core.orders import Policy
from everstream.errors import EverstreamError, RunFailed

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
PAUSE_GROWTH = 4
CALM_S = 60.0
"""After so long without an error of a shard the next one is a first one again."""


class BackOff:
    """How long to wait before a shard that raised an error is tried again.

    At once the first time; then the pauses grow, so that the default budget of three restarts
    outlasts a database that is away for some seconds.
    """

    def __init__(self) -> None:
        self._next_s = 0.0
        self._calm_from_s = 0.0

    def pause_s(self, now_s: float) -> float:
        """It has failed now: the pause before the next attempt."""
        if now_s >= self._calm_from_s:
            self._next_s = 0.0
        pause_s = self._next_s
        self._next_s = min(LONGEST_PAUSE_S, PAUSE_GROWTH * pause_s) or FIRST_PAUSE_S
        self._calm_from_s = now_s + pause_s + CALM_S
        return pause_s


class Restarts:
    """The failures of a run. Those we inject ourselves are not held against the pipeline."""

    def __init__(self, policy: Policy, headway: Headway) -> None:
        self.book = RecoveryBook()
        self._policy = policy
        self._headway = headway
        self._budget = RestartBudget(policy.max_restarts, policy.restart_window_s)
        self.back_off = BackOff()
        self.repeats = Repeats()
        self._injected: dict[HostId, float] = {}

    def goes_on_with(self, headway: Headway) -> None:
        """The run has other shards from now on, of which this one knows."""
        self._headway = headway

    def injected(self, host: HostId, now_s: float) -> None:
        """We are about to kill this host ourselves."""
        self._injected[host] = now_s

    def open(
        self, what: str, shards: Sequence[ShardId], host: HostId | None, now_s: float
    ) -> RecoveryReport:
        """Begin the report of a failure: how far the run had come, which it must reach again."""
        killed_s = self._injected.pop(host, None) if host is not None else None
        goal = self._headway.totals()
        for name, count in self.book.goal().items():
            goal[name] = max(count, goal.get(name, 0))
        report = RecoveryReport(
            what=what,
            shards=tuple(str(shard) for shard in shards),
            injected=killed_s is not None,
            detected_s=now_s,
            failed_s=killed_s,
            records_read=max(self._headway.records_read(), self.book.records_read()),
            goal=goal,
        )
        self.book.open(report)
        return report

    def too_many(
        self,
        report: RecoveryReport,
        host: HostId | None,
        error: EverstreamError | None,
        now_s: float,
    ) -> RunFailed | None:
        """Why the run must end, if this failure was one too many."""
        if report.injected or self._budget.spend(now_s, host):
            return None
        limit, window_s = self._policy.max_restarts, self._policy.restart_window_s
        message = f"{report.what}: more than {limit} failures within {window_s:g} s"
        return RunFailed(message, error)

    def start_failed(
        self, process: TaskNumber, error: EverstreamError, epoch: Epoch, now_s: float
    ) -> RunFailed | None:
        """A host could not even start: why the run must end, if that was one too many."""
        if self.repeats.has_seen(error, epoch):
            return RunFailed(f"host {process} could not start, twice for the same reason", error)
        if self._budget.spend(now_s):
            return None
        message = f"host {process} could not start, more than {self._policy.max_restarts} times"
        return RunFailed(message, error)

    def progressed(self, now_s: float) -> None:
        """Shards that run have come further: some failure may be made up for."""
        if self.book.unfinished:
            self.book.progressed(self._headway.totals(), self._headway.records_read(), now_s)
