"""Committed output and dead letters as rows, all at once or as a stream whose offset is the epoch.

What is between two positions never changes: committed parts stay the same, and a rewound store is
detected. Together with Spark's own record of processed offsets, this makes a query on this stream
see every record exactly once.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from everstream.connectors import collect, dead_letters
from everstream.errors import ConnectorError, UserError
from everstream.inspection.datasource.asked import Asked
from everstream.inspection.datasource.committed import (
    START,
    CommittedOutput,
    OutputPart,
    OutputPosition,
)
from everstream.inspection.datasource.fitting import fitted, rows, schema_of

DEAD_LETTER_COLUMNS: Final = (
    "operator string, shard int, epoch long, error string, place string, record string, repr string"
)
"""`epoch` is the shard's checkpoint, which is the epoch under coordinated protocols."""
MOST_PARTITIONS: Final = 32
"""A run of a week has many thousand parts; a task each would take longer than reading them."""


@dataclass
class Parts(InputPartition):
    """Some files, to be read in this order."""

    parts: list[OutputPart]


class OutputReader(DataSourceReader):
    """Everything that is committed when the query is planned."""

    def __init__(self, asked: Asked, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        committed = CommittedOutput(self._asked)
        return _spread(committed.parts(START, committed.newest()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._asked, self._schema, partition)


class OutputOffsets:
    """The offsets of a stream of committed output, as JSON, and what is between two of them."""

    def __init__(self, asked: Asked, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema
        self._until: OutputPosition | None = None

    def initial(self) -> dict[str, Any]:
        return START.to_json()

    def end_here(self) -> None:
        """From now on the stream ends with what is committed now."""
        self._until = CommittedOutput(self._asked).newest()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """The offset to read to; `start` if nothing was committed since."""
        committed, after = CommittedOutput(self._asked), OutputPosition.from_json(start)
        committed.check(after)
        newest = committed.newest() if self._until is None else self._until
        # An epoch without output does not advance the offset: no empty batches.
        return newest.to_json() if committed.parts(after, newest) else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Parts]:
        committed = CommittedOutput(self._asked)
        after, until = OutputPosition.from_json(start), OutputPosition.from_json(end)
        committed.check(after)
        committed.check(until)
        return _spread(committed.parts(after, until))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._asked, self._schema, partition)


def output_schema(asked: Asked) -> StructType:
    """The columns of the first batch that was committed."""
    committed = CommittedOutput(asked)
    for part in committed.parts(START, committed.newest()):
        for batch in collect.batches_in(committed.folder_of(part.operator), part.name):
            if len(batch):
                return schema_of(batch)
    raise UserError(
        f"nothing is committed in '{asked.store}' yet, so its columns are unknown. Give them with "
        '.schema("name type, ..."), or wait for the first epoch with output.'
    )


def _spread(parts: list[OutputPart]) -> list[Parts]:
    size = math.ceil(len(parts) / MOST_PARTITIONS)
    return [Parts(parts[at : at + size]) for at in range(0, len(parts), size or 1)]


def _read(asked: Asked, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    for part in partition.parts if isinstance(partition, Parts) else ():
        if asked.what == "dead_letters":
            yield from _letters(asked, schema, part)
            continue
        for batch in collect.batches_in(collect.folder_of(asked.place, part.operator), part.name):
            if len(batch):
                yield from fitted(batch, schema)


def _letters(asked: Asked, schema: StructType, part: OutputPart) -> Iterator[pa.RecordBatch]:
    folder = dead_letters.folder_of(asked.store, part.operator)
    path = folder.path_of(part.name)
    try:
        letters = [json.loads(line) for line in folder.fs.cat_file(path).splitlines()]
    except (OSError, ValueError) as error:
        raise ConnectorError(f"cannot read the dead letters '{path}': {error}") from error
    yield from rows(
        {
            "operator": [letter["operator"] for letter in letters],
            "shard": [part.name.shard] * len(letters),
            "epoch": [part.name.checkpoint] * len(letters),
            "error": [letter["error"] for letter in letters],
            "place": [letter.get("place") for letter in letters],
            "record": [
                json.dumps(letter["record"]) if "record" in letter else None for letter in letters
            ],
            "repr": [letter.get("repr") for letter in letters],
        },
        schema,
    )
