"""Webhooks, against urllib3 posting the same lists over one connection.

The bare client keeps nothing: what it has not posted when it dies is lost. Ours first waits, synced,
for its checkpoint.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from everstream.bench.connectors.file_sinks import OBJECTS_PER_BATCH
from everstream.bench.connectors.file_sources import sample
from everstream.bench.connectors.row import Row, SinkRow
from everstream.connectors.http_post import driver
from everstream.connectors.webhook import Webhook
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink

PER_REQUEST = 100


class WebhookSink(SinkRow):
    name, bare_client, records = "webhook-sink", "urllib3 POST", 500_000
    server = "http"

    def batch(self) -> Batch:
        return sample(OBJECTS_PER_BATCH).to_dicts()

    def sink(self, folder: Path) -> Sink:
        return Webhook(self.address, batch=PER_REQUEST)

    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        pool = driver().PoolManager()
        for batch in batches:
            for start in range(0, len(batch), PER_REQUEST):
                body = msgspec.json.encode(batch[start : start + PER_REQUEST])
                pool.request("POST", self.address, body=body)
        pool.clear()

    def arrived(self, folder: Path) -> int:
        return int(driver().request("GET", self.address).data)


ROWS: tuple[type[Row], ...] = (WebhookSink,)
