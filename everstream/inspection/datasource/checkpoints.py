"""The checkpoints of a store as rows: what `everstream checkpoints` lists."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from everstream.inspection import Checkpoint, look
from everstream.inspection.datasource.asked import Asked
from everstream.inspection.datasource.fitting import rows

COLUMNS: Final = (
    "epoch long, status string, complete boolean, final boolean, written_at timestamp, "
    "duration_s double, size_bytes long, restore_bytes long, shards int, problems array<string>, "
    "weaknesses array<string>, slot long"
)


class CheckpointsReader(DataSourceReader):
    """Newest first, in one partition: a store has few."""

    def __init__(self, asked: Asked, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        checkpoints = look(self._asked.open(), verify=self._asked.verify).checkpoints
        lines = [_line(checkpoint) for checkpoint in checkpoints]
        columns = [part.split()[0] for part in COLUMNS.split(", ")]
        yield from rows(
            {name: [line.get(name) for line in lines] for name in columns}, self._schema
        )


def _line(checkpoint: Checkpoint) -> dict[str, Any]:
    line = checkpoint.to_json()
    shards, written_at = line.get("shards"), line.get("written_at")
    return {
        **line,
        "shards": None if shards is None else len(shards),
        "written_at": None if written_at is None else datetime.fromtimestamp(written_at, tz=UTC),
    }
