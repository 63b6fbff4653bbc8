"""The result of a simulated run: its outcome, its faults, and whether it was correct."""

from dataclasses import dataclass, field

from everstream.core.orders import Outcome
from everstream.events import RunEvent


@dataclass
class History:
    """The result of a simulated run."""

    seed: int
    shape: str
    outcome: Outcome | None = None
    lost: int = 0
    duplicated: int = 0
    misordered: bool = False
    virtual_s: float = 0.0
    steps: int = 0
    epochs: int = 0
    recoveries: int = 0
    refused: bool = False
    """It failed because data that it needs to resume is damaged beyond repair, which is true."""
    forced: int = 0
    """Checkpoints that a protocol demanded before a delivery."""
    lost_frames: int = 0
    """Frames the run itself knows to be lost, because logs died with their workers."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    """What the drivers reported."""
    violations: list[str] = field(default_factory=list)
    """Violations of safety, of liveness, or of the core's invariants."""

    @property
    def right(self) -> bool:
        """Finished, with exactly the output of the sequential program, and never unsafe.

        If every checkpoint is damaged beyond repair, it is correct to stop.
        """
        return (self.outcome is Outcome.FINISHED or self.refused) and not self.violations
