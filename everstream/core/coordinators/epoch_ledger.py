"""Coordinated checkpoints: the coordinator's side.

An epoch is complete when every shard has either reported its checkpoint of that number or had
ended before it took part in it. One epoch is in flight at a time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from everstream.core.checkpoint_record import CheckpointRecord
from everstream.core.ids import NO_EPOCH, Epoch, ShardId


@dataclass
class EpochLedger:
    """Which shards have reported what."""

    shards: frozenset[ShardId]
    started: Epoch = NO_EPOCH
    """The highest number ever given out; an aborted number is not used again."""
    in_flight: Epoch | None = None
    began_s: float = 0.0
    records: dict[ShardId, CheckpointRecord] = field(default_factory=dict)
    finals: dict[ShardId, CheckpointRecord] = field(default_factory=dict)

    def start(self, now_s: float) -> Epoch:
        self.started = Epoch(self.started + 1)
        self.in_flight = self.started
        self.began_s = now_s
        self.records = {}
        return self.started

    def add(self, record: CheckpointRecord) -> None:
        if record.final:
            self.finals[record.shard] = record
        elif Epoch(record.number) == self.in_flight:
            self.records[record.shard] = record

    def abort(self) -> None:
        self.in_flight = None
        self.records = {}

    def complete(self) -> dict[ShardId, CheckpointRecord] | None:
        """The records of the epoch in flight, once there is one for every shard."""
        if self.in_flight is None:
            return None
        chosen = dict(self.records)
        for shard, final in self.finals.items():
            if shard not in chosen and final.previous < self.in_flight:
                chosen[shard] = final
        return chosen if len(chosen) == len(self.shards) else None

    def all_final(self) -> bool:
        return len(self.finals) == len(self.shards)

    def close_with_finals(self, now_s: float) -> dict[ShardId, CheckpointRecord]:
        """Every shard has ended: the last epoch, made of their final checkpoints."""
        self.start(now_s)
        return dict(self.finals)

    def roll_back(self, line: Mapping[ShardId, CheckpointRecord], others: Iterable[Epoch]) -> None:
        """Forget what came after the line; shards that had ended in it still have."""
        self.abort()
        self.finals = {shard: record for shard, record in line.items() if record.final}
        self.started = Epoch(max([self.started, *others]))
