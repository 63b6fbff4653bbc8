"""Stores written by hand: epochs of one sink that keeps its output there, committed or not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructField, StructType

from everstream.connectors.collect import Collect, folder_of
from everstream.connectors.files.parts import PartName, owner_of
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import CheckpointNumber, Epoch, ShardId
from everstream.core.permits import permit
from everstream.inspection.datasource.asked import Asked
from everstream.inspection.datasource.output import OutputOffsets
from everstream.inspection.datasource.stream_before_42 import EarlierOutputStream
from everstream.inspection.datasource.stream_since_42 import OutputStream
from everstream.pipeline.sink import Committable, SinkShard
from everstream.state.store import CheckpointStore

PIPELINE, SINK = "made", "out"
NUMBERS = StructType([StructField("value", LongType())])


class Written:
    """A store whose epochs are written one by one."""

    def __init__(self, folder: Path, shards: int = 1, fresh: bool = False) -> None:
        self.url = str(folder)
        self.store = CheckpointStore.at(self.url)
        self.lease = self.store.acquire_lease("test")
        if fresh:
            self.store.forget_all(self.lease)
        self.shards = shards
        self.waiting: dict[int, list[Committable]] = {shard: [] for shard in range(shards)}

    def rescale(self, shards: int) -> None:
        """Other shards from the next epoch on; what waited has been committed when they begin."""
        for shard, transactions in self.waiting.items():
            self.commit(shard, max((t.checkpoint for t in transactions), default=0))
        self.shards = shards
        self.waiting = {shard: [] for shard in range(shards)}

    def prepare(self, shard: int, checkpoint: int, records: Sequence[Any]) -> None:
        """A part that waits for its commit."""
        sink_shard = SinkShard(PIPELINE, SINK, shard, self.shards, 1, self.url)
        writer = Collect().open(sink_shard)
        writer.write(list(records))
        transaction = writer.prepare(checkpoint)
        assert transaction is not None
        transaction.persist()
        self.waiting[shard].append(transaction)

    def epoch(
        self, number: int, numbers: Mapping[int, int] | None = None, returns: tuple[int, ...] = ()
    ) -> None:
        """A manifest of all shards; `numbers`: their own checkpoints, where they are not the epoch's."""
        records = {}
        for shard, transactions in self.waiting.items():
            shard_id = ShardId(SINK, shard)
            records[shard_id] = CheckpointRecord(
                shard_id,
                CheckpointNumber(number if numbers is None else numbers[shard]),
                (SINK,),
                uncommitted={SINK: tuple(t.checkpoint for t in transactions)},
            )
        manifest = EpochManifest(
            Epoch(number),
            records,
            PIPELINE,
            shard_counts={SINK: self.shards},
            described={SINK: Collect().describe_output()},
            returns=returns,
        )
        self.store.append_manifest(self.lease, manifest.to_json())

    def redistribute(self, number: int, shards: int) -> None:
        """The newest epoch once more, as a run goes on from it with another number of shards."""
        entry = self.store.manifests()[0]
        manifest = EpochManifest.from_json(entry.body)
        parts = tuple(manifest.records.values())
        records = {
            ShardId(SINK, shard): CheckpointRecord(
                ShardId(SINK, shard),
                CheckpointNumber(number),
                (SINK,),
                uncommitted={SINK: tuple(n for p in parts for n in (p.uncommitted or {})[SINK])},
                parts=parts,
            )
            for shard in range(shards)
        }
        self.store.append_manifest(
            self.lease, replace(manifest, records=records, shard_counts={SINK: shards}).to_json()
        )

    def commit(self, shard: int, checkpoint: int) -> None:
        for transaction in self.waiting[shard]:
            if transaction.checkpoint <= checkpoint:
                transaction.commit(permit(checkpoint))
        self.waiting[shard] = [t for t in self.waiting[shard] if t.checkpoint > checkpoint]

    def take_back(self, shard: int, checkpoint: int) -> None:
        folder = folder_of(self.url, SINK)
        gone = PartName(owner_of(PIPELINE, SINK), shard, checkpoint)
        for part in folder.parts(gone.owner):
            if part == gone:
                folder.remove(part)

    def stream(self) -> OutputStream:
        return OutputStream(self._offsets())

    def earlier_stream(self) -> EarlierOutputStream:
        return EarlierOutputStream(self._offsets())

    def _offsets(self) -> OutputOffsets:
        return OutputOffsets(Asked(self.url, what="output"), NUMBERS)


class Query:
    """Reads a stream as Spark does: an offset, the files in between, the next offset."""

    def __init__(self, stream: OutputStream) -> None:
        self.stream = stream
        self.offset = stream.initialOffset()
        self.seen: list[int] = []

    def step(self) -> list[int]:
        """One batch; nothing if there is nothing new."""
        end = self.stream.latestOffset(self.offset, None)
        if end == self.offset:
            return []
        batch = [
            value
            for partition in self.stream.partitions(self.offset, end)
            for rows in self.stream.read(partition)
            for value in rows.column("value").to_pylist()
        ]
        self.offset = end
        self.seen += batch
        return batch
