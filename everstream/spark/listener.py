"""What a run tells whoever watches it: the command line's screen, a test, a benchmark."""

from dataclasses import dataclass

from everstream.core.manifest import EpochManifest
from everstream.core.orders import Phase
from everstream.core.plan import Plan
from everstream.core.recovery import RecoveryReport
from everstream.spark.kills import Kill


@dataclass(frozen=True)
class Snapshot:
    """Where the run stands."""

    phase: Phase
    hosts: int
    records_read: int
    totals: dict[str, int]
    epoch: int
    recoveries: list[RecoveryReport]


class Listener:
    """Override what you want to hear. Called on the driver's thread: be quick."""

    def started(self, plan: Plan, total_records: int | None) -> None:
        """The plan is made; Spark is about to start the hosts."""

    def progress(self, snapshot: Snapshot) -> None:
        """Several times a second."""

    def note(self, text: str, warning: bool) -> None:
        """Something the user should know."""

    def epoch(self, manifest: EpochManifest) -> None:
        """An epoch has become stable."""

    def killing(self, kill: Kill) -> None:
        """A kill that was asked for is about to happen."""
