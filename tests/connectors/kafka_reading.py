"""What the tests of the Kafka source share: topics of their own, and readers read to a point."""

import itertools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from everstream.connectors import Kafka
from everstream.pipeline.batch import records_of
from everstream.pipeline.source import EndOfStream, Reader
from tests.kafka_server import KafkaServer

PATIENCE_S = 120.0
"""Only guards against waiting for ever."""
_numbers = itertools.count()


def topic_of(kafka: KafkaServer, partitions: int = 1, **settings: str) -> str:
    """A new topic; settings with underscores for dots."""
    name = f"t-{os.getpid()}-{next(_numbers)}"
    kafka.create_topic(name, partitions, {key.replace("_", "."): v for key, v in settings.items()})
    return name


def opened(source: Kafka, shard: int = 0, shards: int = 1) -> Reader:
    source.check()
    reader = source.open(shard, shards)
    reader.keep_time(time.time, time.monotonic)
    return reader


def read_until(reader: Reader, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """Records until there are enough, or the end."""
    records: list[Any] = []
    until_s = time.monotonic() + PATIENCE_S
    while not enough(records):
        batch = reader.read()
        if isinstance(batch, EndOfStream):
            break
        if batch is None:
            assert time.monotonic() < until_s, f"nothing more after {len(records)} records"
            time.sleep(reader.ready_in_s())
        else:
            records += records_of(batch)
    return records


def read_records(reader: Reader, count: int) -> list[Any]:
    return read_until(reader, lambda records: len(records) >= count)


def all_of(source: Kafka, shards: int = 1) -> list[Any]:
    """Everything, of a source that ends."""
    records: list[Any] = []
    for shard in range(shards):
        reader = opened(source, shard, shards)
        records += read_until(reader, lambda _: False)
        reader.close()
    return records


def numbers(count: int, partitions: int = 1, start: int = 0) -> Iterable[dict[str, Any]]:
    """Records with a number each, dealt out to the partitions."""
    for n in range(start, start + count):
        yield {"value": b"%d" % n, "partition": n % partitions}
