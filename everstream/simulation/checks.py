"""The invariants of every simulated run: safety at every commit, liveness after the last fault.

Safety is checked whenever more output becomes visible: visible output is part of what a plain
sequential program would have produced, and nothing is visible before its epoch is stable. At the
end nothing may be missing. What a driver learns about its manifests must be true and stay true.
Liveness: once the last fault is over, the run ends within a bounded number of steps.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.ids import NO_EPOCH, Epoch
from everstream.core.orders import Outcome
from everstream.simulation.outside import Outside
from everstream.simulation.shapes import Shape

LONGEST_CALM_STEPS = 30_000
"""A run without faults takes some hundred steps; the slowest recoveries some thousand."""


@dataclass
class Safety:
    """Nothing lost, nothing duplicated, nothing shown early, order kept where required."""

    shape: Shape
    outside: Outside
    exactly_once: bool = True
    """Otherwise records may count twice, and only lost records are violations."""
    may_lose: bool = False
    """Frames in transit from a dead worker may be lost, if the run knows that."""
    stable: Epoch = NO_EPOCH
    """The newest epoch that ever had its manifest in the store."""
    violations: list[str] = field(default_factory=list)
    lost: int = 0
    duplicated: int = 0
    misordered: bool = False
    _expected: dict[str, list[Any]] = field(default_factory=dict)
    _stable_of: dict[tuple[str, int], int] = field(default_factory=dict)
    _counts: dict[str, Counter[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._expected = self.shape.expected()
        self._counts = {sink: Counter(records) for sink, records in self._expected.items()}
        self.outside.watch = self.on_shown

    def on_stable(self, manifest: EpochManifest, own_numbers: bool) -> None:
        """This manifest is in the store (a lower number: a fall back).

        `own_numbers`: each shard numbers its own checkpoints.
        """
        if manifest.epoch == NO_EPOCH < self.stable:
            self._violated(f"the run starts over although epoch {self.stable} was stable")
        self.stable = max(self.stable, manifest.epoch)
        if own_numbers:
            for record in manifest.records.values():
                for operator in record.operators:
                    shard = (operator, record.shard.number)
                    self._stable_of[shard] = max(record.number, self._stable_of.get(shard, 0))

    def on_shown(self, operator: str, shard: int, checkpoint: int) -> None:
        """A sink has just made a transaction visible."""
        if not self.exactly_once:
            return
        stable = self._stable_of.get((operator, shard), self.stable)
        if checkpoint > stable:
            self._violated(
                f"{operator}:{shard} showed checkpoint {checkpoint} when only {stable} was stable"
            )
        shown = self.outside.output(operator)
        doubled = Counter(shown) - self._counts[operator]
        if doubled:
            self._violated(f"{operator}:{shard} showed what it must not: {dict(doubled)}")
        if self.shape.ordered and shown != self._expected[operator][: len(shown)]:
            self._violated(f"{operator}:{shard} showed records out of order")

    def at_end(self, outcome: Outcome | None, known_lost: int = 0) -> None:
        """Compare all output with that of the sequential program; only a finished run is complete.

        `known_lost`: frames that the run itself counts as lost.
        """
        for sink, expected in self._expected.items():
            shown = self.outside.output(sink)
            self.duplicated += sum((Counter(shown) - self._counts[sink]).values())
            self.misordered |= self.shape.ordered and shown != expected[: len(shown)]
            if outcome is Outcome.FINISHED:
                self.lost += sum((self._counts[sink] - Counter(shown)).values())
        lost = self.lost and not (self.may_lose and known_lost)
        if lost or (self.duplicated and self.exactly_once):
            self._violated(f"lost {self.lost} and duplicated {self.duplicated} records")
        if self.misordered and self.exactly_once:
            self._violated("the output is out of order")

    def _violated(self, rule: str) -> None:
        self.violations.append(f"safety: {rule}")


@dataclass
class Answers:
    """A manifest that a driver considers stable is in the store; one that was given up never is."""

    there: set[int] = field(default_factory=set)
    """The manifests that are in the store, or were, each by a unique number."""
    given_up: set[int] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)

    def on_landed(self, number: int) -> None:
        if number in self.there:
            self._violated(number, "landed twice")
        if number in self.given_up:
            self._violated(number, "landed after it had been given up")
        self.there.add(number)

    def on_answer(self, number: int, landed: bool) -> None:
        """The answer that its driver received."""
        if landed and number not in self.there:
            self._violated(number, "was reported to be in the store, and is not")
        if not landed:
            self.given_up.add(number)
            if number in self.there:
                self._violated(number, "was given up, and is in the store")

    def on_power_cut(self, before: list[str], after: list[str]) -> None:
        """The entries of the log: the newest has been reported as durable."""
        if before and before[-1:] != after[-1:]:
            self.violations.append(f"answers: a power cut took {before[-1]}")

    def _violated(self, number: int, how: str) -> None:
        self.violations.append(f"answers: manifest {number} {how}")


@dataclass
class Liveness:
    """The run ends soon after the last fault."""

    calm_since: int = 0
    """The step of the last fault."""

    def fault(self, step: int) -> None:
        self.calm_since = step

    def violation(self, step: int) -> str | None:
        calm = step - self.calm_since
        if calm <= LONGEST_CALM_STEPS:
            return None
        return f"liveness: the run has not ended {calm} steps after the last fault"
