"""What a run tells whoever watches it: the command line's screen, a test, a benchmark."""

from dataclasses import dataclass

from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.manifest import EpochManifest
from everstream.core.measures import Measures
from everstream.core.orders import Phase
from everstream.core.plan import Plan
from everstream.engine.kills import Kill
from everstream.observability.history.entries import Entry


@dataclass(frozen=True)
class RunStatus:
    """Where the run stands: what `until=` and `Listener.progress` are given.

    >>> def enough(snapshot):
    ...     return snapshot.records_read >= 1_000_000
    >>> pipeline = es.Pipeline("enough").source(es.Range(3)).collect()
    >>> result = pipeline.run(until=enough)
    """

    phase: Phase
    workers: int
    """How many are there now."""
    records_read: int
    """Records that the sources have given so far."""
    totals: dict[str, int]
    """Operator -> records it has had so far; a source: has given."""
    epoch: int
    """The newest that is stable."""
    recoveries: list[RecoveryReport]
    """One for each failure so far."""


class Listener:
    """Override what you want to hear. Called on the driver's thread: be quick.

    >>> class Loud(es.Listener):
    ...     def note(self, text, warning):
    ...         print(text)
    >>> result = es.Pipeline("heard").source(es.Range(3)).collect().run(listener=Loud())
    """

    def started(self, plan: Plan, total_records: int | None) -> None:
        """The plan is made; Spark is about to start the workers."""

    def progress(self, snapshot: RunStatus) -> None:
        """Several times a second."""

    def measured(self, measures: Measures) -> None:
        """What shards and workers have measured of themselves, twice a second."""

    def note(self, text: str, warning: bool) -> None:
        """Something the user should know."""

    def epoch(self, manifest: EpochManifest) -> None:
        """An epoch has become stable."""

    def rescaled(self, plan: Plan) -> None:
        """The run goes on with other numbers of shards."""

    def given_up(self, number: int, reason: str) -> None:
        """A checkpoint could not be had: an epoch, or one that a shard took by itself."""

    def interval(self, every_s: float) -> None:
        """From now on there is so much time between two epochs."""

    def killing(self, kill: Kill) -> None:
        """A kill that was asked for is about to happen."""

    def recorded(self, entry: Entry) -> None:
        """An entry of the run's history: all of the above, as plain values."""
