"""What the outside world sees: the driver alone commits, and the driver alone puts sinks right.

A task that did so could delete what its twin has just prepared. Tasks only prepare and persist;
their transactions come here with the reports and are committed once the manifest is in the store.
"""

from collections.abc import Callable, Iterable
from typing import Any

from everstream.core.ids import Epoch, Generation, ShardId
from everstream.core.manifest import EpochManifest, records_for
from everstream.core.permits import permit
from everstream.core.plan import Plan
from everstream.core.points import Point
from everstream.microbatch.orders import ShardReport
from everstream.pipeline.graph import Kind
from everstream.pipeline.sink import Sink, SinkShard, Writer
from everstream.runtime.saved_stages import DEAD_LETTERS
from everstream.state.snapshot import extras_in
from everstream.state.store import CheckpointStore


class Output:
    """The driver's hand on every sink of a pipeline."""

    def __init__(self, plan: Plan, store: CheckpointStore, store_url: str) -> None:
        self._plan = plan
        self._store = store
        self._store_url = store_url
        self._writers: dict[tuple[ShardId, str], Writer] = {}
        """By shard and stage."""

    def put_right(self, generation: Generation, manifest: EpochManifest | None) -> None:
        """Let every sink show exactly what this manifest says, and take over from all before.

        Raises CorruptObject if it cannot be known what that is.
        """
        self.close()
        stable = permit(manifest.epoch if manifest is not None else 0)
        for shard in self._plan.sink_shards():
            saved = {} if manifest is None else self._saved(shard, manifest)
            for stage, sink in self._sinks(shard):
                writer = sink.open(self._who(shard, stage, generation))
                self._writers[shard, stage] = writer
                writer.recover(saved.get(stage, {}).get("transactions", ()), stable)

    def commit(
        self, epoch: Epoch, reports: Iterable[ShardReport], reached: Callable[[Point], None]
    ) -> None:
        """The epoch is stable: show what its shards have prepared."""
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

    def _saved(self, shard: ShardId, manifest: EpochManifest) -> dict[str, Any]:
        """What the checkpoint of a shard keeps besides its state, by stage."""
        saved: dict[str, Any] = {}
        for record in records_for(self._plan, manifest.records)[shard]:
            newest = record.objects[-1]
            for name, extra in extras_in(self._store.get(newest), newest.name).items():
                owner = record.owner(name)
                if owner is not None:
                    saved[owner] = extra
        return saved

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
