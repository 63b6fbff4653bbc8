"""`Kafka`: the options for topics to read (`kafka.source`) and a topic to write (`kafka.sink`)."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from everstream.connectors.kafka.client import Cluster, checked_options, checked_topics, driver
from everstream.connectors.kafka.formats import (
    Avro,
    KeyFormat,
    ValueFormat,
    checked_fields,
    checked_key,
    decoder,
)
from everstream.connectors.kafka.offsets import Bound, checked_bound
from everstream.connectors.kafka.producer import MOST_BYTES, Encoding, Function
from everstream.connectors.kafka.records import RecordLayout
from everstream.connectors.kafka.sink import KafkaSink, TopicOutput
from everstream.connectors.kafka.source import KafkaSource, Reading
from everstream.connectors.options import MAX_RECORD_BYTES, at_least_one
from everstream.connectors.two_way import TwoWay
from everstream.errors import UserError
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.event_time.windows import Duration
from everstream.pipeline.rejects import OnError, checked
from everstream.pipeline.sink import Delivery
from everstream.pipeline.times import TimeOf, microseconds

_OURS = {
    "bootstrap.servers": "it is the first argument",
    "group.id": "say group=...",
    "isolation.level": "use isolation=...",
    "auto.offset.reset": "use start=...; an offset that no longer exists is an error",
    "enable.auto.commit": "offsets are in the checkpoints; group=... shows them to others",
    "enable.auto.offset.store": "offsets are in the checkpoints",
    "enable.partition.eof": "the source needs it",
    "transactional.id": "every shard has its own",
    "logger": "messages go to the logger 'everstream.kafka'",
    "error_cb": "errors are raised",
}


class Kafka(KafkaSource, KafkaSink, TwoWay[Any]):
    """Topics of Kafka: one, several, or all that match a pattern ("^orders-.*").

    Records are the values, decoded as `value` selects; with `fields` they are rows of any of value,
    key, headers, timestamp, topic, partition and offset. Batches are DataFrames with `schema` (the
    columns of JSON or Avro values), with `columns=True` (text and bytes) and for Arrow.

    Partitions are assigned to the shards; new ones are discovered every `discover`. Offsets are in
    the checkpoints, so every record counts once; with `group` they are also committed to a consumer
    group, for others to see. `start` ("earliest", "latest", a datetime, {partition: offset})
    applies to a run without a checkpoint; at `stop` the source ends. Only committed transactions
    are read, unless isolation="read_uncommitted".

    An Arrow value that unpacks to more than `max_record_bytes` (default 64 MB) is rejected as
    `on_error` sets, like one that cannot be read.

    event_time=True takes event time from the timestamps of the records, partition by partition; a
    partition that is silent for `idle_after` does not hold back the others. `options` go to the
    client (security.protocol, sasl.password, ...) and are neither shown nor stored.

    As a sink it writes values to one topic, encoded as `value` selects or by `encode`, with the key
    that `key_by` names or computes. The key determines the partition as in Java. Columns can be
    written as `headers` and `timestamp`. Exactly-once: messages appear when their checkpoint is
    stable, in one Kafka transaction. With delivery="at-least-once" they are sent at once.

    >>> orders = es.Kafka("localhost:9092", "orders", start="latest")
    >>> stream = es.Pipeline("orders").source(orders, shards=2)
    >>> pipeline = stream.sink(es.Kafka("localhost:9092", "by-customer", key_by="customer"))
    """

    source_options = frozenset(
        {"key", "schema", "columns", "avro", "fields", "start", "stop", "isolation", "group"}
        | {"event_time", "lateness", "idle_after", "discover", "batch_records"}
        | {"max_record_bytes", "on_error"}
    )
    sink_options = frozenset({"encode", "key_by", "headers", "timestamp", "delivery"})

    def __init__(
        self,
        bootstrap: str,
        topic: str | Sequence[str],
        *,
        value: ValueFormat = "json",
        key: KeyFormat = "text",
        schema: Mapping[str, Any] | type | None = None,
        columns: bool = False,
        avro: Avro | None = None,
        fields: Sequence[str] | None = None,
        start: Bound = "earliest",
        stop: Bound | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        group: str | None = None,
        event_time: bool = False,
        lateness: Duration = 0,
        idle_after: Duration | None = None,
        discover: str | float = "30s",
        patience: str | float = "1m",
        batch_records: int = 2_000,
        max_record_bytes: int = MAX_RECORD_BYTES,
        on_error: OnError = "fail",
        encode: Function | None = None,
        key_by: str | Function | None = None,
        headers: Sequence[str] = (),
        timestamp: str | None = None,
        delivery: Literal["exactly-once", "at-least-once"] = "exactly-once",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        driver()
        at_least_one(batch_records=batch_records, max_record_bytes=max_record_bytes)
        if isolation not in ("read_committed", "read_uncommitted"):
            raise UserError(f'isolation={isolation!r}: use "read_committed" or "read_uncommitted".')
        if not event_time and (lateness or idle_after is not None):
            raise UserError("lateness and idle_after need event_time=True.")
        self._cluster = Cluster(bootstrap, checked_options(options, _OURS))
        topics = checked_topics(topic)
        shape = RecordLayout(checked_fields(fields), checked_key(key), checked(on_error, "Kafka"))
        self.on_error = shape.on_error
        self._decoder = decoder(value, columns, schema, avro, max_record_bytes)
        shape.check(list(self._decoder.column_types() or ()))
        if event_time:
            if "timestamp" not in (shape.fields or ()):
                raise UserError(
                    'event_time=True takes the time from the field "timestamp", so records '
                    'must have it: fields=["value", "timestamp"].'
                )
            self.event_time = TimeOf("timestamp", "ms")
        self._reading = Reading(
            self._cluster,
            topics,
            checked_bound(start, "start", topics),
            None if stop is None else checked_bound(stop, "stop", topics),
            isolation == "read_committed",
            group,
            batch_records,
            seconds(discover),
            seconds(patience),
            shape,
            microseconds(lateness) if event_time else None,
            None if idle_after is None else microseconds(idle_after) / 1e6,
        )
        if delivery not in ("exactly-once", "at-least-once"):
            raise UserError(f'delivery={delivery!r}: use "exactly-once" or "at-least-once".')
        self.delivery = Delivery(delivery)
        self._audit_copy: str | None = None
        most_bytes = int(self._cluster.options.get("message.max.bytes", MOST_BYTES))
        self._encoding = Encoding(encode or value, key_by, headers, timestamp, most_bytes)

    @property
    def output(self) -> TopicOutput:
        topic, *more = self._reading.topics
        if more or topic.startswith("^"):
            raise UserError(f"a sink writes to one topic, not to {', '.join([topic, *more])}.")
        self._encoding.check()
        return TopicOutput(
            self._cluster, topic, self._encoding, self._reading.patience_s, self._audit_copy
        )

    def audit_copy(self, label: str) -> "Kafka":
        other = copy.copy(self)
        other._audit_copy = label
        return other
