"""Writes the batches of a streaming query to a topic, from Spark 4.1 on, which passes Arrow batches."""

import io
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from everstream.errors import UserError
from everstream.inspection.datasource.topic import Topic, TopicBatch, query_id


@dataclass
class WrittenFile(WriterCommitMessage):
    """The file of one task; None if the task had no rows."""

    name: str | None


class TopicWriter(DataSourceStreamArrowWriter):
    """Writes files in tasks, and commits a batch on the driver."""

    def __init__(self, url: str, checkpoint_location: str, schema: StructType) -> None:
        self._url = url
        self._checkpoint_location = checkpoint_location
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFile:
        buffer, writer = io.BytesIO(), None
        for batch in iterator:
            if batch.num_rows:
                writer = writer or parquet.ParquetWriter(buffer, batch.schema)
                writer.write_batch(batch)
        if writer is None:
            return WrittenFile(None)
        writer.close()
        name = f"files/{uuid.uuid4().hex}.parquet"
        Topic(self._url).blobs.write(name, buffer.getvalue())
        return WrittenFile(name)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query = query_id(self._checkpoint_location)
        batch = TopicBatch(query, tuple(_files(messages)), self._schema.jsonValue())
        Topic(self._url).commit(batchId, batch)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        Topic(self._url).discard(_files(messages))


def _files(messages: list[WriterCommitMessage | None]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, WrittenFile) and message.name is not None:
            yield message.name


def topic_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicWriter:
    """The writer for the options of `df.writeStream`, checked."""
    given = {name.lower(): text for name, text in options.items()}
    unknown = sorted(given.keys() - {"store", "path", "checkpointlocation"})
    if unknown:
        raise UserError(
            f'there is no option "{unknown[0]}" for a topic; there are: store, checkpointLocation.'
        )
    place = given.get("store") or given.get("path")
    if not place:
        raise UserError('name the folder to write to: .start("topic/").')
    if overwrite:
        raise UserError(
            'a topic keeps all batches: use outputMode("append") or outputMode("update"), not '
            '"complete", which replaces the output of earlier batches.'
        )
    location = given.get("checkpointlocation")
    if not location:
        raise UserError(
            'a topic needs the checkpoint of its query: .option("checkpointLocation", FOLDER).'
        )
    url = place if "://" in place else str(Path(place).absolute())
    return TopicWriter(url, location, schema)
