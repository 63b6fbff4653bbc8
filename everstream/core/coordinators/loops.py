"""When a loop has run dry: feedback edges never end by themselves.

A shard on a cycle waits for the end of its feedback input, and that waits for the shard. So the
coordinator finds out when a cycle is quiet: everything that feeds it from outside has ended, none
of its shards has work, and no frame is on its way inside it. It asks all shards of the cycle
twice. If all were passive both times, and what they had received by the first answer is what they
had sent by the second, nothing moved in between and nothing is on its way (the four-counter
method). Then the feedback inputs are declared ended and the run ends in the usual order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from everstream.core.ids import ShardId
from everstream.core.messages import Census, Probe


@dataclass
class LoopWatch:
    """Asks around one cycle until it is quiet."""

    cycle: tuple[ShardId, ...]
    round: int = 0
    over: bool = False
    waits: bool = False
    answers: dict[ShardId, Census] = field(default_factory=dict)
    _received_before: int | None = None
    """What all had received in the last complete round, if all were passive then."""

    def reset(self) -> None:
        """Somebody went back: what was found out does not count, not even that it was over."""
        self.round += 1
        self.over = False
        self.answers = {}
        self.waits = False
        self._received_before = None

    def next_round(self) -> int:
        self.round += 1
        self.answers = {}
        self.waits = True
        return self.round

    @property
    def complete(self) -> bool:
        """Nobody's answer is waited for, so the next question may be asked."""
        return not self.waits

    def on_census(self, answer: Census) -> None:
        if answer.round != self.round or self.over or answer.shard not in self.cycle:
            return
        self.answers[answer.shard] = answer
        if len(self.answers) < len(self.cycle):
            return
        self.waits = False
        sent = sum(census.sent for census in self.answers.values())
        received = sum(census.received for census in self.answers.values())
        passive = all(census.passive for census in self.answers.values())
        self.over = passive and self._received_before == sent
        self._received_before = received if passive else None


class Loops:
    """All cycles of a plan: asks around each of them, and says which have run dry."""

    def __init__(self, cycles: Sequence[tuple[ShardId, ...]]) -> None:
        self._watches = [LoopWatch(cycle) for cycle in cycles]

    def questions(self) -> list[Probe]:
        """What to ask now, once everything that feeds the cycles has ended."""
        return [
            Probe(number, watch.next_round())
            for number, watch in enumerate(self._watches)
            if watch.complete and not watch.over
        ]

    def on_census(self, answer: Census) -> list[int]:
        """The numbers of the cycles that this answer shows to have run dry."""
        dry = []
        for number, watch in enumerate(self._watches):
            before = watch.over
            if answer.cycle == number:
                watch.on_census(answer)
            if watch.over and not before:
                dry.append(number)
        return dry

    def reset(self) -> None:
        """Somebody went back."""
        for watch in self._watches:
            watch.reset()
