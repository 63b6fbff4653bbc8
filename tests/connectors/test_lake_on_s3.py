"""A Delta table in a real object store, where one of two that put the same version wins."""

import pickle
import threading
from pathlib import Path

import polars as pl
import pytest

from everstream.connectors import Delta
from everstream.core.permits import permit
from everstream.pipeline.batch import records_of
from everstream.pipeline.sink import SinkShard
from everstream.pipeline.source import EndOfStream
from tests.s3_server import BUCKET, SECRET, S3Server


@pytest.mark.long
def test_shards_and_restarts_share_a_delta_table_in_a_bucket(tmp_path: Path) -> None:
    with S3Server(tmp_path / "s3") as server:
        url, options = f"s3://{BUCKET}/lake/words", {**server.variables, "AWS_ALLOW_HTTP": "true"}
        saved: dict[int, bytes] = {}
        errors: list[Exception] = []

        def sink_shard(shard: int, generation: int) -> SinkShard:
            return SinkShard("words", "counts", shard, 2, generation, str(tmp_path / "store"))

        def work(shard: int) -> None:
            try:
                writer = Delta(url, storage_options=options).open(sink_shard(shard, 1))
                writer.recover([], permit(0))
                for checkpoint in (1, 2):
                    writer.write([{"shard": shard, "checkpoint": checkpoint}])
                    transaction = writer.prepare(checkpoint)
                    assert transaction is not None
                    transaction.persist()
                    saved[shard] = pickle.dumps(transaction)
                    if checkpoint == 1:
                        transaction.commit(permit(1))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(shard,)) for shard in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert all(SECRET.encode() not in data for data in saved.values())
        for generation in (2, 3):
            for shard in range(2):
                heir = Delta(url, storage_options=options).open(sink_shard(shard, generation))
                assert not heir.recover([pickle.loads(saved[shard])], permit(2))
        expected = [(shard, checkpoint) for shard in range(2) for checkpoint in (1, 2)]
        shown = pl.read_delta(url, storage_options=options)
        assert sorted(shown.select("shard", "checkpoint").rows()) == expected

        reader = Delta(url, storage_options=options).open(0, 1)
        read = []
        while not isinstance(batch := reader.read(), EndOfStream):
            assert batch is not None
            read += records_of(batch)
        assert sorted((row["shard"], row["checkpoint"]) for row in read) == expected
