"""A topic: the batches of a streaming query of Spark, kept in a folder, each exactly once.

A task writes its rows to `files/<random>.parquet`. Spark then commits the batch, and `commit`
creates `batches/<number>.json`, which lists the files of the batch. Only one process can create that
file, and only listed files are read. So a batch that Spark gives again, after a failure or because
another driver took over, changes nothing, and readers see a batch completely or not at all.

Batch numbers are unique only within one query. Each batch records the query's id, which Spark keeps
in its checkpoint, and a batch of another query is refused: skipping it would lose its rows.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from everstream.errors import StoreError, UserError
from everstream.inspection.datasource.fitting import fitted_table
from everstream.state.blobs import FsspecBlobs


def path_of_batch(number: int) -> str:
    return f"batches/{number:020d}.json"


@dataclass(frozen=True)
class TopicBatch:
    """A committed batch."""

    query: str
    """The id of the query that wrote it."""
    files: tuple[str, ...]
    schema: dict[str, Any]

    def to_json(self) -> bytes:
        return json.dumps(
            {"query": self.query, "files": list(self.files), "schema": self.schema}
        ).encode()


class Topic:
    """The batches in a folder, or under a URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.blobs = FsspecBlobs(url)

    def __len__(self) -> int:
        """The number of batches; they are numbered from 0."""
        return len(self.blobs.list("batches/"))

    def batch(self, number: int) -> TopicBatch | None:
        try:
            body = json.loads(self.blobs.read(path_of_batch(number)))
            return TopicBatch(body["query"], tuple(body["files"]), body["schema"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:
            raise StoreError(
                f"batch {number} of the topic '{self.url}' is damaged: {error}. Restore "
                f"'{path_of_batch(number)}' from a copy."
            ) from error

    def commit(self, number: int, batch: TopicBatch) -> None:
        """Commit a batch; the files of one that was committed before are removed."""
        before = self.batch(number - 1) if number else batch
        if before is None:
            raise StoreError(
                f"the topic '{self.url}' has no batch {number - 1}, which the query has written "
                "before this one. Restore the folder, or start over with another checkpointLocation "
                "and another folder."
            )
        self._require_same(before.query, batch.query)
        try:
            self.blobs.create(path_of_batch(number), batch.to_json())
            return
        except FileExistsError:
            pass  # by an earlier attempt, or by another driver
        committed = self.batch(number)
        assert committed is not None
        self._require_same(committed.query, batch.query)
        self.discard(name for name in batch.files if name not in committed.files)

    def discard(self, files: Iterator[str]) -> None:
        for name in files:
            self.blobs.delete(name)

    def schema(self) -> StructType:
        """The columns of the newest batch."""
        newest = self.batch(len(self) - 1)
        if newest is None:
            raise UserError(
                f"the topic '{self.url}' has no batch yet, so its columns are unknown. Give them "
                'with .schema("name type, ..."), or wait for the first batch.'
            )
        return StructType.fromJson(newest.schema)

    def files(self, start: int, end: int) -> list[str]:
        """The files of the batches from one number to another, which is not included."""
        found = [(number, self.batch(number)) for number in range(start, end)]
        missing = [number for number, batch in found if batch is None]
        if missing:
            raise StoreError(
                f"the topic '{self.url}' no longer has batch {missing[0]}. Restore the folder, or "
                "start the query again with another checkpointLocation."
            )
        return [name for _, batch in found if batch is not None for name in batch.files]

    def rows(self, name: str, schema: StructType) -> Iterator[pa.RecordBatch]:
        try:
            table = parquet.read_table(io.BytesIO(self.blobs.read(name)))
        except (FileNotFoundError, pa.ArrowException) as error:
            raise StoreError(f"cannot read '{name}' of the topic '{self.url}': {error}") from error
        yield from fitted_table(table, schema)

    def _require_same(self, known: str, query: str) -> None:
        if known != query:
            raise UserError(
                f"the topic '{self.url}' belongs to another streaming query ({known}, this one is "
                f"{query}): its batches have the same numbers. Resume that query with its own "
                "checkpointLocation, or write to another folder."
            )


def query_id(checkpoint_location: str) -> str:
    """The id of a query, which Spark writes into its checkpoint before the first batch."""
    place = f"{checkpoint_location.rstrip('/')}/metadata"
    try:
        with fsspec.open(place, "rb") as file:
            return str(json.loads(file.read())["id"])
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise StoreError(
            f"cannot read the id of the streaming query in '{place}': {error}. The driver must be "
            "able to read its checkpointLocation."
        ) from error


@dataclass
class TopicFile(InputPartition):
    """One file, to be read by one task."""

    name: str


class TopicReader(DataSourceReader):
    """All batches that are committed when the query is planned."""

    def __init__(self, url: str, schema: StructType) -> None:
        self._url = url
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        topic = Topic(self._url)
        return [TopicFile(name) for name in topic.files(0, len(topic))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TopicFile):  # Spark has its own partition for an empty topic
            yield from Topic(self._url).rows(partition.name, self._schema)


class TopicOffsets:
    """A topic as a stream: an offset is the number of batches before it."""

    def __init__(self, url: str, schema: StructType) -> None:
        self._reader = TopicReader(url, schema)
        self._url = url
        self._until: int | None = None

    def initial(self) -> dict[str, Any]:
        return {"batches": 0}

    def end_here(self) -> None:
        self._until = len(Topic(self._url))

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        return {"batches": len(Topic(self._url)) if self._until is None else self._until}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TopicFile]:
        files = Topic(self._url).files(start["batches"], end["batches"])
        return [TopicFile(name) for name in files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)
