"""Visible output: only the driver commits, and only the driver repairs sinks.

A task that did so could delete what its duplicate has just prepared. Tasks only prepare and
persist; their transactions arrive here with the reports and are committed once the manifest is in
the store.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from everstream.core.checkpointing.manifest import EpochManifest, records_for
from everstream.core.checkpointing.record import DEAD_LETTERS, CheckpointRecord
from everstream.core.fault_points import Point
from everstream.core.ids import Epoch, Generation, ShardId
from everstream.core.permits import permit
from everstream.core.plan import Plan
from everstream.engine.microbatch.orders import ShardReport
from everstream.pipeline.graph import Kind
from everstream.pipeline.sink import Sink, SinkShard, Writer
from everstream.state.snapshot import extras_in
from everstream.state.store import CheckpointStore


class Output:
    def __init__(self, plan: Plan, store: CheckpointStore, store_url: str) -> None:
        self._plan = plan
        self._store = store
        self._store_url = store_url
        self._writers: dict[tuple[ShardId, str], Writer] = {}
        """By shard and stage."""

    def put_right(self, generation: Generation, manifest: EpochManifest | None) -> None:
        """Make every sink show exactly the content of this manifest, and fence all earlier writers.

        Raises CorruptObject if that content cannot be determined.
        """
        self.close()
        stable = permit(0)
        if manifest is not None:
            stable = permit(manifest.epoch, manifest.may_be_behind_output)
        for shard in self._plan.sink_shards():
            records = [] if manifest is None else records_for(self._plan, manifest.records)[shard]
            saved = {
                (r.shard.number, stage): x for r in _parts(records) for stage, x in self._saved(r)
            }
            for stage, sink in self._sinks(shard):
                who = self._who(shard, stage, generation)
                for number, shards in self._vanished(shard, stage, records):
                    earlier = sink.open(replace(who, shard=number, shards=shards))
                    try:
                        earlier.recover(
                            saved.get((number, stage), {}).get("transactions", ()), stable
                        )
                    finally:
                        earlier.close()
                writer = self._writers[shard, stage] = sink.open(who)
                own = saved.get((shard.number, stage), {})
                writer.recover(own.get("transactions", ()), stable)

    def commit(
        self, epoch: Epoch, reports: Iterable[ShardReport], reached: Callable[[Point], None]
    ) -> None:
        """The epoch is stable: commit what its shards have prepared."""
        stable = permit(epoch)
        for report in reports:
            for stage, transaction in report.transactions:
                [ready] = self._writers[report.shard, stage].adopt([transaction])
                ready.commit(stable)
                reached(Point.IN_COMMIT)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _saved(self, record: CheckpointRecord) -> Iterator[tuple[str, Any]]:
        """What a shard's checkpoint contains besides its state, by stage."""
        for newest in record.objects[-1:]:
            for name, extra in extras_in(self._store.get(newest), newest.name).items():
                owner = record.owner(name)
                if owner is not None:
                    yield owner, extra

    def _vanished(
        self, shard: ShardId, stage: str, records: Iterable[CheckpointRecord]
    ) -> Iterator[tuple[int, int]]:
        """The earlier shards of a sink that this shard replaces, and how many shards there were."""
        operator, now = stage.removesuffix(DEAD_LETTERS), self._plan.chains[shard.operator].shards
        most = max((record.most_shards.get(operator, 0) for record in records), default=0)
        for number in range(most):
            if number % now == shard.number and number != shard.number:
                yield number, most

    def _sinks(self, shard: ShardId) -> Iterable[tuple[str, Sink]]:
        for name in self._plan.chains[shard.operator].operators:
            node = self._plan.graph.nodes[name]
            if node.kind is Kind.SINK:
                assert isinstance(node.what, Sink)
                yield name, node.what
            if node.dead_letters is not None:
                yield name + DEAD_LETTERS, node.dead_letters

    def _who(self, shard: ShardId, stage: str, generation: Generation) -> SinkShard:
        operator = stage.removesuffix(DEAD_LETTERS)
        shards = self._plan.chains[shard.operator].shards
        name = self._plan.graph.name
        return SinkShard(name, operator, shard.number, shards, generation, self._store_url)


def _parts(records: Iterable[CheckpointRecord]) -> Iterator[CheckpointRecord]:
    """The records themselves, or the records they are shares of."""
    for record in records:
        yield from record.parts or (record,)
