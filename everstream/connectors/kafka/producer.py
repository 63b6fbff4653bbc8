"""Passes rows of messages to the client: columns key, value, and optionally timestamp and headers.

The client takes many messages in one call, but only if they have neither headers nor timestamps;
with those, each message is a call. `AtOnceWriter` is the sink that needs nothing else:
at-least-once, where a checkpoint waits until the brokers have the messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from everstream.connectors.kafka.client import Cluster, driver
from everstream.connectors.kafka.encoding import HEADER, KEY, TIMESTAMP, VALUE, Encoding
from everstream.connectors.refusing import encoded_or_refused
from everstream.connectors.retry import Deadline
from everstream.errors import ConnectorError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import SinkShard, Writer

IN_FLIGHT = 50_000
"""How many messages may be queued in the client before the next ones: half of its capacity."""
AT_ONCE = 2_000
"""Few enough that the objects made for one call are reused for the next."""
BYTES_AT_ONCE = 64 << 20
BYTES_IN_FLIGHT = 128 << 20
"""The same for large messages: the client takes a gigabyte, and drops the rest."""
FLUSH_S, FLUSH_ALL_S = 0.01, 0.5


def producing(cluster: Cluster) -> dict[str, Any]:
    """Settings of a producer: partitions by key like Java's default, unless overridden."""
    return cluster.settings(partitioner="murmur2_random")


def producer_of(cluster: Cluster, settings: Mapping[str, Any]) -> Any:
    try:
        return driver().Producer(dict(settings))
    except driver().KafkaException as error:
        raise cluster.explained(error) from None


def send(producer: Any, topic: str, frame: pl.DataFrame, patience_s: float) -> None:
    """Queue messages in the producer, in order, as fast as the queue empties."""
    weight = max(1.0, frame.estimated_size() / max(1, frame.height))
    rows_at_once = max(1, min(AT_ONCE, int(BYTES_AT_ONCE / weight)))
    room = min(IN_FLIGHT, int(BYTES_IN_FLIGHT / weight))
    plain = set(frame.columns) <= {KEY, VALUE}
    for part in frame.iter_slices(rows_at_once):
        wait_for_room(producer, topic, patience_s, room)
        if plain:
            _send_together(producer, topic, part)
        else:
            _send_each(producer, topic, part)


def wait_for_room(producer: Any, topic: str, patience_s: float, room: int = IN_FLIGHT) -> None:
    """Wait until at most `room` messages are queued in the client."""
    deadline = Deadline(patience_s)
    while len(producer) > room and producer.flush(FLUSH_S) > room:
        if deadline.passed:
            raise ConnectorError(
                f"topic '{topic}' accepts no messages: more than {room} have been waiting for "
                f"{patience_s:.0f} s. Check that its brokers run."
            )


def _send_together(producer: Any, topic: str, part: pl.DataFrame) -> None:
    values = part[VALUE].to_list()
    messages: list[dict[str, Any]]
    if KEY in part.columns:
        keys = part[KEY].to_list()
        messages = [{VALUE: value, KEY: key} for value, key in zip(values, keys, strict=True)]
    else:
        messages = [{VALUE: value} for value in values]
    if producer.produce_batch(topic, messages) != len(messages):
        failed = next(message["_error"] for message in messages if "_error" in message)
        raise driver().KafkaException(failed)


def _send_each(producer: Any, topic: str, part: pl.DataFrame) -> None:
    nothing: Sequence[None] = [None] * part.height
    values = part[VALUE].to_list()
    keys = part[KEY].to_list() if KEY in part.columns else nothing
    times = part[TIMESTAMP].to_list() if TIMESTAMP in part.columns else nothing
    names = [name for name in part.columns if name.startswith(HEADER)]
    header_names = [name.removeprefix(HEADER) for name in names]
    headers = part.select(names).rows() if names else [()] * part.height
    produce = producer.produce
    for value, key, at, head in zip(values, keys, times, headers, strict=True):
        present = [pair for pair in zip(header_names, head, strict=True) if pair[1] is not None]
        produce(topic, value, key, headers=present, **({} if at is None else {"timestamp": at}))


class AtOnceWriter(Writer):
    """One producer; the next call raises what could not be delivered."""

    def __init__(
        self, cluster: Cluster, topic: str, encoding: Encoding, shard: SinkShard, patience_s: float
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._encoding = encoding
        self._operator = shard.operator
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
        operator, encoding = self._operator, self._encoding
        messages = encoded_or_refused(batch, lambda b: encoding.messages(b, operator), operator)
        send(self._producer, self._topic, messages, self._patience_s)
        self._producer.poll(0)
        self._raise_failed()

    def prepare(self, checkpoint: int) -> None:
        deadline = Deadline(self._patience_s)
        while waiting := self._producer.flush(FLUSH_ALL_S):
            self._raise_failed()
            if deadline.passed:
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
