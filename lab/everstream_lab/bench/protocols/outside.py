"""Latency as an observer outside sees it: the times at which a Kafka broker stored the output.

As in FERDiS, the pipeline also writes to a special topic: when records were due. The broker adds the
time at which it appended each message, so no clock or file of the pipeline takes part. Messages are
sent at once, not with a checkpoint, and what is sent again after a failure counts again.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import everstream as es
from everstream.connectors.kafka.client import administration, driver
from everstream.errors import UserError
from everstream.pipeline.stream import Stream
from everstream_lab.bench.connectors.kafka_server import PATIENCE_S, LocalKafka
from everstream_lab.bench.latency import SAMPLES, Arrivals
from everstream_lab.bench.workloads.inputs import DUE

TOPIC = "observed"


class Observer:
    """A topic whose messages get the time of the broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def watch(self, stream: Stream[Any]) -> None:
        """Send samples of the due times of this stream to the topic."""
        sink = es.Kafka(self.bootstrap, TOPIC, delivery="at-least-once")
        stream.map_batches(_samples, as_="polars", name="sampled").sink(sink, name="observed")

    def arrivals(self) -> Arrivals:
        """Everything in the topic, in the order of the broker's times."""
        consumer = driver().Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": TOPIC, "enable.auto.commit": False}
        )
        partition = driver().TopicPartition(TOPIC, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, PATIENCE_S)
        consumer.assign([partition])
        rows: list[tuple[float, float, float]] = []
        while consumer.position([partition])[0].offset < end:
            for message in consumer.consume(10_000, timeout=1.0):
                if message.error():
                    raise driver().KafkaException(message.error())
                sample = json.loads(message.value())
                stored_ms = message.timestamp()[1]
                rows.append((stored_ms / 1e3, sample[DUE] / 1e6, sample["records"]))
        consumer.close()
        at_s, due_s, records = np.array(sorted(rows), np.float64).reshape(-1, 3).T
        return Arrivals(at_s, due_s, records)


def _samples(frame: pl.DataFrame) -> pl.DataFrame:
    """A few due times of a batch, each with the number of records that it represents."""
    apart = max(len(frame) // SAMPLES, 1)
    chosen = frame[DUE][apart // 2 :: apart][:SAMPLES]
    share = len(frame) / max(len(chosen), 1)
    return pl.DataFrame({DUE: chosen, "records": pl.Series([share]).new_from_index(0, len(chosen))})


@contextmanager
def observer(folder: Path) -> Iterator[Observer]:
    """A broker for one run, which leaves nothing behind."""
    missing = LocalKafka.missing()
    if missing is not None:
        raise UserError(f"measuring at Kafka needs a broker: {missing}.")
    kafka = LocalKafka(folder)
    try:
        kafka.start()
        topic = administration().NewTopic(
            TOPIC, 1, 1, config={"message.timestamp.type": "LogAppendTime"}
        )
        client = administration().AdminClient({"bootstrap.servers": kafka.bootstrap})
        client.create_topics([topic])[TOPIC].result(PATIENCE_S)
        yield Observer(kafka.bootstrap)
    finally:
        kafka.kill()
