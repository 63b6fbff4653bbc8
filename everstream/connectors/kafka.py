"""`Kafka`: topics as a source, and a topic as a sink; how is told in `kafka_source` and `kafka_sink`."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import polars as pl

from everstream.connectors.checks import at_least_one
from everstream.connectors.kafka_avro import Avro, AvroDecoder
from everstream.connectors.kafka_client import Cluster, checked_options, checked_topics, driver
from everstream.connectors.kafka_encoding import MOST_BYTES, Encoding, Function
from everstream.connectors.kafka_formats import (
    Decoder,
    KeyFormat,
    ValueFormat,
    checked_fields,
    checked_key,
    decoder,
)
from everstream.connectors.kafka_offsets import Bound, KafkaOffset, checked_bound, respread_places
from everstream.connectors.kafka_records import Shape
from everstream.connectors.kafka_sink import KafkaSink, Output
from everstream.connectors.kafka_source import KafkaReader, Reading
from everstream.errors import UserError
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.rejects import OnError, checked
from everstream.pipeline.sink import Delivery, SinkShard, Writer
from everstream.pipeline.source import Reader, Source
from everstream.pipeline.times import TimeOf, microseconds
from everstream.pipeline.windows import Duration

_OURS = {
    "bootstrap.servers": "it is the first argument",
    "group.id": "say group=...",
    "isolation.level": "say isolation=...",
    "auto.offset.reset": "say start=...; a place that is gone is an error",
    "enable.auto.commit": "offsets are in the checkpoints; group=... shows them to others",
    "enable.auto.offset.store": "offsets are in the checkpoints",
    "enable.partition.eof": "the source needs it",
    "transactional.id": "every shard has its own",
    "logger": "messages go to the logger 'everstream.kafka'",
    "error_cb": "errors are raised",
}


class Kafka(Source[Any], KafkaSink):
    """Topics of Kafka: one, several, or all that match a pattern ("^orders-.*").

    Records are the values, decoded as `value` says; with `fields` they are rows of any of value,
    key, headers, timestamp, topic, partition and offset. Batches are DataFrames with `schema` (the
    columns of JSON or Avro values), with `columns=True` (text and bytes) and for Arrow.

    Partitions are dealt out to the shards; those that come later are found every `discover`. Where
    each stands is in the checkpoints, so every record counts once; a `group` is told for others to
    see. `start` ("earliest", "latest", a datetime, {partition: offset}) counts for a run that
    begins from nothing, `stop` makes the source end there. Of transactions, only what was committed
    is read, unless isolation="read_uncommitted".

    event_time=True takes event time from the timestamps of the records, partition by partition;
    one that has been silent for `idle_after` does not hold back the others. `options` go to the
    client (security.protocol, sasl.password, ...) and are neither shown nor stored.

    As a sink it writes values to one topic, as `value` says or `encode` makes them of a record,
    with the key that `key_by` names or makes, which decides on the partition as in Java, and with
    columns as `headers` and `timestamp`. Exactly-once: messages show when their checkpoint is
    stable, in one transaction of Kafka. With delivery="at-least-once" they are sent at once.

    >>> orders = es.Kafka("localhost:9092", "orders", start="latest")
    >>> stream = es.Pipeline("orders").source(orders, shards=2)
    >>> pipeline = stream.sink(es.Kafka("localhost:9092", "by-customer", key_by="customer"))
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str | Sequence[str],
        *,
        value: ValueFormat = "json",
        key: KeyFormat = "text",
        schema: Mapping[str, Any] | None = None,
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
        on_error: OnError = "fail",
        encode: Function | None = None,
        key_by: str | Function | None = None,
        headers: Sequence[str] = (),
        timestamp: str | None = None,
        delivery: Literal["exactly-once", "at-least-once"] = "exactly-once",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        driver()
        at_least_one(batch_records=batch_records)
        if isolation not in ("read_committed", "read_uncommitted"):
            raise UserError(f'isolation={isolation!r}: say "read_committed" or "read_uncommitted".')
        if (value == "avro") != (avro is not None):
            raise UserError('value="avro" and avro=es.Avro(...) belong together.')
        if not event_time and (lateness or idle_after is not None):
            raise UserError("lateness and idle_after say how event time advances: event_time=True.")
        self._cluster = Cluster(bootstrap, checked_options(options, _OURS))
        topics = checked_topics(topic)
        shape = Shape(checked_fields(fields), checked_key(key), checked(on_error, "Kafka"))
        self.on_error = shape.on_error
        self._decoder = decoder(value, columns, schema, lambda wanted: _avro(avro, wanted))
        shape.check(self._decoder.column_names() or ())
        if event_time:
            if "timestamp" not in (shape.fields or ()):
                raise UserError(
                    'event_time=True takes the time from the field "timestamp", which records '
                    'must have, then: fields=["value", "timestamp"].'
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
        self._begin: KafkaOffset | None = None
        if delivery not in ("exactly-once", "at-least-once"):
            raise UserError(f'delivery={delivery!r}: say "exactly-once" or "at-least-once".')
        self.delivery = Delivery(delivery)
        self._aside: str | None = None
        most_bytes = int(self._cluster.options.get("message.max.bytes", MOST_BYTES))
        self._encoding = Encoding(encode or value, key_by, headers, timestamp, most_bytes)

    @property
    def output(self) -> Output:
        topic, *more = self._reading.topics
        if more or topic.startswith("^"):
            raise UserError(f"a sink writes to one topic, not to {', '.join([topic, *more])}.")
        self._encoding.check()
        return Output(self._cluster, topic, self._encoding, self._reading.patience_s, self._aside)

    def aside(self, label: str) -> "Kafka":
        other = copy.copy(self)
        other._aside = label
        return other

    def describe_offsets(self) -> dict[str, Any]:
        return {
            **super().describe_offsets(),
            "topics": list(self._reading.topics),
            "bounded": self._reading.bounded,
        }

    def respread(self, offsets: Sequence[KafkaOffset], shards: int) -> Sequence[KafkaOffset]:
        return respread_places(offsets, shards)

    def check(self) -> None:
        """Look the topics up, and where they begin and end: once for all shards."""
        self._begin = self._reading.begin()

    @overload
    def open(self, shard: int, shards: int) -> Reader: ...
    @overload
    def open(self, who: SinkShard) -> Writer: ...
    def open(self, *args: Any, **named: Any) -> Reader | Writer:
        """A reader for (shard, shards), a writer for a `SinkShard`."""
        who = named.get("who", args[0] if args else None)
        if isinstance(who, SinkShard):
            return self._open_writer(who)
        return self._open_reader(*args, **named)

    def _open_reader(self, shard: int, shards: int) -> Reader:
        begin = self._begin if self._begin is not None else self._reading.begin()
        mine = begin.of_shard(shard, shards)
        reading = self._reading
        if self.event_time is not None and reading.idle_after_s is None and not mine.places:
            raise UserError(
                f"shard {shard} has none of the {len(begin.places)} partitions and would hold back "
                "time for all. Use fewer shards, or say idle_after='30s'."
            )
        return KafkaReader(reading, self._decoder, mine, shard, shards)

    def waits_for(self) -> str | None:
        if self._begin is None or self._begin.places:
            return None
        where = f"at {self._cluster.bootstrap} matches {self._reading.topics[0]!r}"
        return f"no topic {where} yet: the run waits for one"

    def column_names(self) -> list[str] | None:
        names = self._decoder.column_names()
        return None if names is None else self._reading.shape.column_names(names)


def _avro(avro: Avro | None, schema: pl.Schema | None) -> Decoder:
    assert avro is not None
    return AvroDecoder(avro, schema)
