"""Batches as messages, with columns key, value, timestamp and headers, and messages to the client.

Columns are encoded as columns, and Python objects as a batch by their encoder. Only functions
given by the user are called for each record. The client takes many messages in one call, but only
if they have neither headers nor timestamps; with those, each message is a call. `AtOnceWriter` is
the sink that needs nothing else: at-least-once, where a checkpoint waits until the brokers have the
messages.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import polars as pl

from everstream.connectors.columns import as_frame
from everstream.connectors.files.json_lines import JsonEncoder
from everstream.connectors.kafka.client import Cluster, driver
from everstream.connectors.refusing import encoded_or_refused
from everstream.connectors.retry import Deadline
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.sink import SinkShard, Writer

KEY, VALUE, TIMESTAMP, HEADER = "key", "value", "timestamp", "header:"
"""Columns of a frame of messages; those of headers begin with the last."""
Function: TypeAlias = Callable[[Any], Any]
WRITTEN = ("json", "text", "bytes", "arrow")
"""The formats of values that can be written."""
MOST_BYTES = 1_000_000
"""The default limit of librdkafka for one message: message.max.bytes."""
OVERHEAD_BYTES = 512
"""The size of a message beyond key, value and headers, generously."""


@dataclass(frozen=True)
class Encoding:
    value: str | Function = "json"
    """A format, or a function that turns a record into bytes or text."""
    key_by: str | Function | None = None
    headers: Sequence[str] = ()
    timestamp: str | None = None
    most_bytes: int = MOST_BYTES

    def check(self) -> None:
        if not callable(self.value) and self.value not in WRITTEN:
            raise UserError(
                f"value={self.value!r} cannot be written: use {', '.join(map(repr, WRITTEN))}, or "
                "give a function that turns a record into bytes: encode=..."
            )
        if isinstance(self.headers, str):
            raise UserError(f"headers={self.headers!r} must list columns: [{self.headers!r}].")
        if self.value == "arrow" and (self.key_by is not None or self.headers or self.timestamp):
            raise UserError(
                "value='arrow' puts many rows into one message, which then can have no key, "
                "headers or timestamp of a row. Remove these, or send rows as 'json'."
            )

    def messages(self, batch: Batch, operator: str) -> pl.DataFrame:
        if self.value == "arrow":
            return self._in_arrow(batch, operator)
        made = {VALUE: self._values(batch, operator)}
        if self.key_by is not None:
            keys = taken(batch, self.key_by, operator, "key_by")
            made[KEY] = as_bytes(keys, operator, "key_by")
        if self.timestamp is not None:
            made[TIMESTAMP] = _milliseconds(
                taken(batch, self.timestamp, operator, "timestamp"), operator, self.timestamp
            )
        for name in self.headers:
            head = taken(batch, name, operator, "headers")
            made[HEADER + name] = as_bytes(head, operator, f"headers=[{name!r}]")
        messages = pl.DataFrame(made)
        self._refuse_the_too_large(messages, operator)
        return messages

    def _values(self, batch: Batch, operator: str) -> pl.Series:
        if callable(self.value):
            values = [self.value(record) for record in records_of(batch)]
            return as_bytes(series_of(values, operator, "encode"), operator, "encode")
        if self.value == "json":
            lines = JsonEncoder(operator).encode(batch).split(b"\n")
            return pl.Series(lines[:-1], dtype=pl.Binary)
        return as_bytes(self._single(batch, operator), operator, "value")

    def _single(self, batch: Batch, operator: str) -> pl.Series:
        """The column for text or bytes: the only one, or the one named value."""
        if isinstance(batch, pl.DataFrame):
            used = {self.key_by, self.timestamp, *self.headers}
            names = [name for name in batch.columns if name not in used]
            if VALUE in batch.columns:
                return batch[VALUE]
            if len(names) == 1:
                return batch[names[0]]
            raise UserError(
                f"operator '{operator}': value={self.value!r} takes one column, named 'value' or "
                f"the only one besides key, timestamp and headers, but there are: "
                f"{', '.join(names) or 'none'}."
                " Select one, or send all of them as value='json'."
            )
        if isinstance(batch[0], dict):
            return taken(batch, VALUE, operator, "value")
        return series_of(batch, operator, "value")

    def _refuse_the_too_large(self, messages: pl.DataFrame, operator: str) -> None:
        """Refuses the record here: the client would fail the commit, again and again."""
        sizes = messages.select(
            pl.sum_horizontal(pl.col(pl.Binary).bin.size().fill_null(0)).alias("bytes")
        )["bytes"]
        largest = sizes.max()
        if isinstance(largest, int) and largest + OVERHEAD_BYTES > self.most_bytes:
            raise UserError(
                f"operator '{operator}': a message of {largest} bytes exceeds the limit of "
                f"{self.most_bytes}. Make it smaller before the sink, or raise the limits of "
                "client and topic: options={'message.max.bytes': ...}, and "
                "max.message.bytes of the topic."
            )

    def _in_arrow(self, batch: Batch, operator: str) -> pl.DataFrame:
        """Rows as Arrow streams, as many in each message as fit well."""
        if not isinstance(batch, pl.DataFrame):
            if not isinstance(batch[0], dict):
                raise UserError(
                    f"operator '{operator}': value='arrow' takes rows, not records of type "
                    f"{type(batch[0]).__name__}. Turn them into dicts with a map first."
                )
            batch = as_frame(batch, operator)
        weight = max(1.0, batch.estimated_size() / batch.height)
        rows = max(1, int(self.most_bytes / 2 / weight))
        values = []
        for part in batch.iter_slices(rows):
            stream = io.BytesIO()
            part.write_ipc_stream(stream)
            values.append(stream.getvalue())
        messages = pl.DataFrame({VALUE: pl.Series(values, dtype=pl.Binary)})
        self._refuse_the_too_large(messages, operator)
        return messages


def taken(batch: Batch, what: str | Function, operator: str, option: str) -> pl.Series:
    """One part of each record: a column, the value of a key in dicts, or the result of a function."""
    if callable(what):
        return series_of([what(record) for record in records_of(batch)], operator, option)
    if isinstance(batch, pl.DataFrame):
        if what not in batch.columns:
            raise UserError(
                f"operator '{operator}': there is no column '{what}', which {option} names; there "
                f"are {', '.join(batch.columns)}."
            )
        return batch[what]
    try:
        return series_of([record[what] for record in batch], operator, option)
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"operator '{operator}': not every record has a '{what}', which {option} names: "
            f"{type(error).__name__} {error}. Give a function instead: {option}=lambda record: ..."
        ) from None


def series_of(values: Sequence[Any], operator: str, option: str) -> pl.Series:
    """Values of one type; text, bytes, integers and booleans may be mixed."""
    kinds = {type(value) for value in values} - {type(None)}
    if len(kinds) > 1 and kinds <= {str, bytes, int, bool}:
        values = [_in_bytes(value) for value in values]
    try:
        return pl.Series(values, dtype=None if kinds else pl.Binary)
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"operator '{operator}': {option} must be of one type, text, bytes or numbers: {error}."
        ) from None


def _in_bytes(value: str | bytes | int | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode()


def as_bytes(values: pl.Series, operator: str, option: str) -> pl.Series:
    """Text as UTF-8, integers and booleans as text, bytes unchanged; None stays None."""
    kind = values.dtype
    if kind == pl.Binary:
        return values
    if kind == pl.String:
        return values.cast(pl.Binary)
    if kind.is_integer() or kind in (pl.Boolean, pl.Null, pl.Categorical) or kind == pl.Enum:
        return values.cast(pl.String).cast(pl.Binary)
    raise UserError(
        f"operator '{operator}': {option} must be text, bytes or whole numbers, not {kind}. Convert "
        "it before the sink, or give a function that does."
    )


def _milliseconds(values: pl.Series, operator: str, column: str) -> pl.Series:
    if isinstance(values.dtype, pl.Datetime):
        return values.dt.epoch("ms")
    if values.dtype.is_integer():
        return values.cast(pl.Int64)
    raise UserError(
        f"operator '{operator}': timestamp='{column}' must be a {datetime.__name__} or milliseconds "
        f"since 1970, not {values.dtype}."
    )


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
