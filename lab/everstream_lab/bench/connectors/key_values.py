"""Redis, against redis-py's own pipelines, as many commands at a time as ours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from everstream.connectors.redis.client import driver
from everstream.connectors.redis.sink import ROWS_PER_CALL, Redis
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink
from everstream_lab.bench.connectors.file_sources import sample
from everstream_lab.bench.connectors.row import Row, SinkRow

ROWS_PER_BATCH = 16_384


class _RedisRow(SinkRow):
    server = "redis"

    @property
    def client(self) -> Any:
        return driver().Redis.from_url(self.address)

    def batch(self) -> Batch:
        return sample(ROWS_PER_BATCH)

    def arrived(self, folder: Path) -> int:
        """Every batch has the same keys: all of them, once, say that each was written."""
        with self.client as client:
            keys = sum(1 for _ in client.scan_iter("bench:*", count=10_000))
            client.flushdb()
        return self.total if keys == min(self.total, ROWS_PER_BATCH) else keys


class RedisHashSink(_RedisRow):
    name, bare_client, records = "redis-hash-sink", "redis-py pipeline, HSET", 200_000

    def sink(self, folder: Path) -> Sink:
        return Redis(self.address, key="bench:{id}")

    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        with self.client as client:
            for frame in _calls(batches):
                pipe = client.pipeline(transaction=False)
                for row in frame.iter_rows(named=True):
                    pipe.hset(f"bench:{row['id']}", mapping=row)
                pipe.execute()


class RedisTextSink(_RedisRow):
    name, bare_client, records = "redis-text-sink", "redis-py pipeline, SET", 600_000

    def sink(self, folder: Path) -> Sink:
        return Redis(self.address, key="bench:{id}", value="user")

    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        with self.client as client:
            for frame in _calls(batches):
                pipe = client.pipeline(transaction=False)
                for key, user in frame.select("id", "user").iter_rows():
                    pipe.set(f"bench:{key}", user)
                pipe.execute()


def _calls(batches: Iterator[Batch]) -> Iterator[pl.DataFrame]:
    for batch in batches:
        assert isinstance(batch, pl.DataFrame)
        yield from batch.iter_slices(ROWS_PER_CALL)


ROWS: tuple[type[Row], ...] = (RedisHashSink, RedisTextSink)
