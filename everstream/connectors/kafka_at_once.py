"""Messages that go to a topic as they come, at least once: a checkpoint waits until brokers have them."""

import time
from typing import Any

from everstream.connectors.kafka_client import Cluster
from everstream.connectors.kafka_encoding import Encoding
from everstream.connectors.kafka_sending import producer_of, producing, send
from everstream.errors import ConnectorError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import SinkShard, Writer

WAIT_S = 0.5


class AtOnceWriter(Writer):
    """One producer; what could not be delivered is raised by the next call."""

    def __init__(
        self, cluster: Cluster, topic: str, encoding: Encoding, who: SinkShard, patience_s: float
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._encoding = encoding
        self._operator = who.operator
        self._patience_s = patience_s
        self._failed: Any = None
        settings = {
            "enable.idempotence": True,
            **producing(cluster),
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
        }
        self._producer = producer_of(cluster, settings)

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        send(
            self._producer,
            self._topic,
            self._encoding.messages(batch, self._operator),
            self._patience_s,
        )
        self._producer.poll(0)
        self._raise_failed()

    def prepare(self, checkpoint: int) -> None:
        until_s = time.monotonic() + self._patience_s
        while waiting := self._producer.flush(WAIT_S):
            self._raise_failed()
            if time.monotonic() > until_s:
                raise ConnectorError(
                    f"topic '{self._topic}', Kafka at {self._cluster.bootstrap}: {waiting} messages "
                    f"could not be delivered in {self._patience_s:.0f} s. Check that its brokers run."
                )
        self._raise_failed()

    def close(self) -> None:
        self._producer.purge()

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed = error

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise self._cluster.explained(self._failed, f", topic '{self._topic}'")
