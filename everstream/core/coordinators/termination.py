"""Detects that nothing moves any more: on a cycle that has run dry, or in a run that quiesces.

Feedback edges never end without help. A shard on a cycle waits for the end of its feedback input,
and that waits for the shard. So the coordinator finds out when a cycle is quiet: everything that
feeds it from outside has ended, none of its shards has work, and no frame is in flight inside it.
It asks all shards of the cycle twice. If all were passive both times, and the frames they had
received by the first answer equal the frames they had sent by the second, nothing moved in between
and nothing is in flight (the four-counter method). Then the coordinator declares the feedback
inputs ended, and the run ends in the usual order.

A run quiesces in the same way before its shards change: sources stop reading, timers pause, and the
coordinator asks all shards until nothing moves. The checkpoint taken then holds no frames, under
any protocol.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from everstream.core.ids import Generation, ShardId
from everstream.core.messages import EVERYBODY, Census, Command, Pause, Probe


@dataclass
class TerminationDetector:
    """Probes the shards of one cycle until it is quiet."""

    cycle: tuple[ShardId, ...]
    round: int = 0
    over: bool = False
    waits: bool = False
    """An answer is outstanding: the next probe may not be sent yet."""
    answers: dict[ShardId, Census] = field(default_factory=dict)
    _received_before: int | None = None
    """Frames that all shards had received in the last complete round, if all were passive then."""

    def reset(self) -> None:
        """A shard rolled back: no earlier answer counts, not even that the cycle had ended."""
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


class CycleTermination:
    """All cycles of a plan: probes each of them, and reports which have run dry."""

    def __init__(self, cycles: Sequence[tuple[ShardId, ...]]) -> None:
        self._watches = [TerminationDetector(cycle) for cycle in cycles]

    def questions(self) -> list[Probe]:
        """The probes to send now, once everything that feeds the cycles has ended."""
        return [
            Probe(number, watch.next_round())
            for number, watch in enumerate(self._watches)
            if not watch.waits and not watch.over
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
        """A shard rolled back."""
        for watch in self._watches:
            watch.reset()


class Quiesce:
    """Whether the run is to quiesce, and how far that has come."""

    def __init__(self, shards: Sequence[ShardId]) -> None:
        self._watch = TerminationDetector(tuple(shards))
        self._paused_in: Generation | None = None
        """Shards that roll back forget that they were paused."""
        self.reason: str | None = None
        self.by_s = 0.0
        """When the attempt is given up."""
        self.ends_run = False
        """Whether the run ends then: its sources have caught up."""

    @property
    def wanted(self) -> bool:
        return self.reason is not None

    def begin(self, reason: str, by_s: float, *, ends_run: bool = False) -> None:
        self.reason, self.by_s, self._paused_in = reason, by_s, None
        self.ends_run = ends_run

    def interrupt(self) -> None:
        """A shard rolls back: things move again, and answers in flight do not count.

        Sources that had caught up may read again, so whether they have must be found out anew.
        """
        self._paused_in = None
        self._watch.reset()
        if self.ends_run:
            self.end()

    def end(self) -> None:
        """The run has quiesced, or is no longer to do so."""
        self.reason = None

    def commands(self, generation: Generation) -> list[Command]:
        """The commands for all shards now, while all of them work."""
        if not self.wanted:
            return []
        if generation != self._paused_in:
            self._paused_in = generation
            self._watch.reset()
            return [Pause()]
        if not self._watch.waits and not self._watch.over:
            return [Probe(EVERYBODY, self._watch.next_round())]
        return []

    def on_census(self, answer: Census) -> bool:
        """Whether this answer shows that nothing moves any more."""
        if not self.wanted or answer.cycle != EVERYBODY or self._watch.over:
            return False
        self._watch.on_census(answer)
        return self._watch.over
