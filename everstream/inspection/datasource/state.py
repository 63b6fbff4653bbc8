"""The state of operators in a checkpoint, as rows: one partition per shard.

A live run keeps pruning checkpoints. So small state is read while the query is planned, from one
complete checkpoint, and travels with the plan. Only large state is read by the tasks, which then
must be faster than the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.engine.spark.launcher import arrow_schema, spark_schema
from everstream.errors import CorruptObject, StoreError, UserError
from everstream.inspection.checkpoints import choose, survey_of
from everstream.inspection.datasource.asked import Asked
from everstream.inspection.datasource.fitting import ROWS_PER_BATCH, rows
from everstream.inspection.operator_state import require_operator, saved_in, state_of
from everstream.state.objects import ObjectRef
from everstream.state.store import CheckpointStore, Manifest

COLUMNS: Final = "operator string, shard int, state string, key string, value string, epoch long"
TRAVELS_BYTES: Final = 16 << 20
"""State up to this size, over all shards, travels with the plan."""


@dataclass
class SavedShard(InputPartition):
    """What one shard saved: the bytes, or where they are."""

    record: dict[str, Any]
    epoch: int
    slot: int
    objects: dict[ObjectRef, bytes] | None


class StateReader(DataSourceReader):
    """Reads one checkpoint, of one operator or of all."""

    def __init__(self, asked: Asked, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        store = self._asked.open()
        while True:
            survey, _ = survey_of(store)
            entry = choose(survey, self._asked.epoch)
            manifest = EpochManifest.from_json(entry.body)
            records = self._records(manifest)
            size_bytes = sum(record.restore_bytes for record in records)
            travels = size_bytes <= TRAVELS_BYTES
            try:
                return [
                    SavedShard(
                        record.to_json(),
                        manifest.epoch,
                        entry.slot,
                        _all_of(store, record) if travels else None,
                    )
                    for record in records
                ]
            except CorruptObject:
                if store.still_has(entry):
                    raise
                continue  # a live driver has pruned it meanwhile: try again

    def _records(self, manifest: EpochManifest) -> list[CheckpointRecord]:
        operator, held = self._asked.operator, manifest.records.values()
        if operator is None:
            return list(held)
        require_operator(manifest, operator)
        return [record for record in held if operator in record.operators]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SavedShard):
            return  # Spark's own, where a checkpoint has no shards
        record = CheckpointRecord.from_json(partition.record)
        objects = partition.objects
        if objects is None:
            objects = _fetched(self._asked.open(), record, partition)
        operator, content = self._asked.operator, objects

        def load(refs: Sequence[ObjectRef]) -> list[bytes]:
            return [content[ref] for ref in refs]

        saved = (row for row in saved_in(record, load) if operator in (None, row[0]))
        while chunk := list(islice(saved, ROWS_PER_BATCH)):
            owners, names, keys, values = zip(*chunk, strict=True)
            yield from rows(
                {
                    "operator": owners,
                    "shard": [record.shard.number] * len(chunk),
                    "state": names,
                    "key": keys,
                    "value": values,
                    "epoch": [partition.epoch] * len(chunk),
                },
                self._schema,
            )


@dataclass
class SavedRows(InputPartition):
    """The rows of an operator, over all shards, in Arrow's IPC format."""

    data: bytes


class RowsReader(DataSourceReader):
    """Reads the rows of a built-in operator: the driver makes them of what all shards saved."""

    def __init__(self, asked: Asked, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        table = _rows_of(self._asked)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return [SavedRows(sink.getvalue().to_pybytes())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SavedRows)
        table = pa.ipc.open_stream(partition.data).read_all()
        wanted = arrow_schema(self._schema)
        yield from table.select(wanted.names).cast(wanted).to_batches(max_chunksize=ROWS_PER_BATCH)


def rows_schema(asked: Asked) -> StructType:
    """The columns of `option("rows", "true")`."""
    return spark_schema(_rows_of(asked).schema)


def _rows_of(asked: Asked) -> pa.Table:
    if asked.operator is None:
        raise UserError('option("rows", "true") reads one operator: give option("operator", ...).')
    frame = state_of(asked.open(), asked.operator, asked.epoch)
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def _all_of(store: CheckpointStore, record: CheckpointRecord) -> dict[ObjectRef, bytes]:
    return {ref: store.get(ref) for ref in (*record.objects, *record.files)}


def _fetched(
    store: CheckpointStore, record: CheckpointRecord, shard: SavedShard
) -> dict[ObjectRef, bytes]:
    try:
        return _all_of(store, record)
    except CorruptObject as error:
        if store.still_has(Manifest(shard.slot, 0, {})):
            raise
        raise StoreError(
            f"epoch {shard.epoch} was pruned by the active run in {store.blobs!r} before "
            f"the state of {record.shard} was read. Read again; if that happens often, "
            "checkpoint less often, or stop the run while its state is read."
        ) from error
