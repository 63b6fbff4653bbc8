"""The index of uncoordinated checkpoints: which shard has taken which, and which of them agree.

It holds every durable checkpoint since the stable line. From these it computes the worst-case line
(if all shards failed now), the recovery line (if some have failed and the others have reported
their positions), and the objects in the store that no rollback can need any more.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Mapping

from everstream.core.checkpointing.manifest import EpochManifest, records_for
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.checkpointing.recovery_line import (
    ChannelEnds,
    Position,
    descendants,
    recovery_line,
)
from everstream.core.ids import NO_CHECKPOINT, CheckpointNumber, ShardId
from everstream.core.messages import Halted
from everstream.core.plan import Plan
from everstream.state.objects import ObjectRef


class CheckpointIndex:
    """Checkpoints of all shards, each with its own numbers."""

    def __init__(self, plan: Plan, manifests: Iterable[EpochManifest]) -> None:
        self.plan = plan
        self.histories: dict[ShardId, list[CheckpointRecord]] = {}
        """Durable checkpoints since the stable line, oldest first."""
        self._taken_s: dict[tuple[ShardId, CheckpointNumber], float] = {}
        self._known: dict[str, ObjectRef] = {
            ref.name: ref
            for manifest in manifests
            for record in manifest.records.values()
            for ref in record.all_objects
        }
        # The declared end of a cycle binds all of its shards: as if each had sent to every other.
        pairs = [(a, b) for cycle in plan.cycles for a in cycle for b in cycle if a != b]
        self._links = [*plan.links, *(ChannelEnds(f"loop/{a}->{b}", a, b) for a, b in pairs)]

    def start_from(self, line: Mapping[ShardId, CheckpointRecord]) -> None:
        """Forget everything after this line."""
        chosen = records_for(self.plan, line)
        self.histories = {shard: list(chosen[shard][:1]) for shard in self.plan.shards}

    def add(self, record: CheckpointRecord, now_s: float) -> int:
        """A checkpoint is durable. Returns the bytes of log that it has added to the store."""
        insort(self.histories[record.shard], record, key=lambda known: known.number)
        self._taken_s[record.shard, record.number] = now_s
        added = [s.ref.size_bytes for s in record.log if s.ref.name not in self._known]
        self._known |= {ref.name: ref for ref in record.all_objects}
        return sum(added)

    def downstream(self, shards: Collection[ShardId]) -> set[ShardId]:
        """The shards that may have received something from these."""
        return descendants(self._links, shards) - set(shards)

    def worst_case_line(self) -> dict[ShardId, CheckpointRecord]:
        """The line to roll back to if all shards failed now; shards not in it would start over."""
        positions = {
            shard: [self._position(shard, record) for record in history]
            for shard, history in self.histories.items()
        }
        line = recovery_line(self._links, positions)
        return {s: self.histories[s][i] for s, i in line.items() if i >= 0}

    def going_back(
        self, failed: Collection[ShardId], halted: Mapping[ShardId, Halted]
    ) -> dict[ShardId, CheckpointRecord | None]:
        """The shards that have to roll back, and their checkpoints (None: the start).

        Shards off the paths of the failed ones cannot have received too much or sent too little.
        """
        involved = {*failed, *halted}
        links = [k for k in self._links if {k.sender, k.receiver} <= involved]
        positions = {
            shard: [
                *(self._position(shard, record) for record in self.histories[shard]),
                *(self._position(shard, h) for h in [halted.get(shard)] if h is not None),
            ]
            for shard in involved
        }
        back: dict[ShardId, CheckpointRecord | None] = {}
        for shard, index in recovery_line(links, positions).items():
            history = self.histories[shard]
            if index < len(history):
                back[shard] = history[index] if index >= 0 else None
        return back

    def distance(
        self, back: Mapping[ShardId, CheckpointRecord | None], began_s: float, now_s: float
    ) -> tuple[float, int]:
        """The age of the oldest of these checkpoints, and the most that one shard gives up."""
        ages_s, given_up = [0.0], [0]
        for shard, record in back.items():
            taken_s = self._taken_s.get((shard, record.number)) if record is not None else None
            ages_s.append(now_s - (began_s if taken_s is None else taken_s))
            number = record.number if record is not None else NO_CHECKPOINT
            given_up.append(sum(r.number > number for r in self.histories[shard]))
        return max(ages_s), max(given_up)

    def give_up_after(self, shard: ShardId, record: CheckpointRecord | None) -> None:
        """The shard has rolled back to this checkpoint: later ones never happened."""
        history = self.histories[shard]
        self.histories[shard] = [r for r in history if record and r.number <= record.number]

    def newest_numbers(self) -> dict[ShardId, CheckpointNumber]:
        """The number of the newest known checkpoint of each shard."""
        return {
            shard: history[-1].number if history else NO_CHECKPOINT
            for shard, history in self.histories.items()
        }

    def forget_before(self, numbers: Mapping[ShardId, CheckpointNumber]) -> None:
        """No shard rolls back behind these any more."""
        for shard, number in numbers.items():
            self.histories[shard] = [r for r in self.histories[shard] if r.number >= number]
        self._taken_s = {
            key: taken_s for key, taken_s in self._taken_s.items() if key[1] >= numbers[key[0]]
        }

    def take_unneeded(self, manifests: Iterable[EpochManifest]) -> tuple[ObjectRef, ...]:
        """Objects that neither these manifests nor a checkpoint in the index needs."""
        kept = [r for manifest in manifests for r in manifest.records.values()]
        kept += (record for history in self.histories.values() for record in history)
        needed = {ref.name for record in kept for ref in record.all_objects}
        gone = tuple(ref for name, ref in self._known.items() if name not in needed)
        self._known = {name: ref for name, ref in self._known.items() if name in needed}
        return gone

    def _position(self, shard: ShardId, at: CheckpointRecord | Halted) -> Position:
        received, sent = dict(at.received), dict(at.sent)
        if at.loops_ended:
            for other in self.plan.cycle_of(shard):
                received[f"loop/{other}->{shard}"] = sent[f"loop/{shard}->{other}"] = 1
        return Position(received, sent)
