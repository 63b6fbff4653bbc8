"""Rows of messages handed to the client: columns key, value, and if there are any timestamp and headers.

The client takes many messages in one call, but only if they have neither headers nor timestamps
of their own; with those each message is a call.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from everstream.connectors.kafka_client import Cluster, driver
from everstream.errors import ConnectorError

KEY, VALUE, TIMESTAMP, HEADER = "key", "value", "timestamp", "header:"
"""Columns of a frame of messages; those of headers begin with the last."""
IN_FLIGHT = 50_000
"""So many messages may wait in the client when the next ones come: half of what it takes."""
AT_ONCE = 2_000
"""Few enough that the objects made for one call are used again for the next."""
BYTES_AT_ONCE = 64 << 20
BYTES_IN_FLIGHT = 128 << 20
"""The same for large messages: the client takes a gigabyte, and drops what is more."""
WAIT_S = 0.01


def producing(cluster: Cluster) -> dict[str, Any]:
    """Settings of a producer: by key as Java's default partitioner does, unless told otherwise."""
    return cluster.settings(partitioner="murmur2_random")


def producer_of(cluster: Cluster, settings: Mapping[str, Any]) -> Any:
    try:
        return driver().Producer(dict(settings))
    except driver().KafkaException as error:
        raise cluster.explained(error) from None


def send(producer: Any, topic: str, frame: pl.DataFrame, patience_s: float) -> None:
    """Put messages into the producer's queue, in order, as fast as that empties."""
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
    """Until no more messages than `room` wait in the client."""
    until_s = time.monotonic() + patience_s
    while len(producer) > room and producer.flush(WAIT_S) > room:
        if time.monotonic() > until_s:
            raise ConnectorError(
                f"topic '{topic}' takes no messages: more than {room} wait since "
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
    words = [name.removeprefix(HEADER) for name in names]
    headers = part.select(names).rows() if names else [()] * part.height
    produce = producer.produce
    for value, key, at, head in zip(values, keys, times, headers, strict=True):
        said = [pair for pair in zip(words, head, strict=True) if pair[1] is not None]
        produce(topic, value, key, headers=said, **({} if at is None else {"timestamp": at}))
