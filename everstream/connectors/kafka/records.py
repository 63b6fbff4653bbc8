"""From messages of the client to a batch: values alone, or rows with other fields of the record.

The client gives messages as objects. Each field is extracted with one call for the whole batch,
not message by message.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from everstream.connectors.kafka.client import driver
from everstream.connectors.kafka.formats import (
    BROKEN,
    Decoder,
    KeyFormat,
    Raw,
    Text,
    Values,
    column_kinds,
    sound,
)
from everstream.connectors.kafka.offsets import Partition
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.times import NO_WATERMARK


class Messages:
    """The messages of one batch, none of them an error."""

    def __init__(self, messages: list[Any]) -> None:
        self._kind = driver().Message
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def only(self, places: Sequence[int]) -> "Messages":
        return Messages([self._messages[place] for place in places])

    def all(self, field: str) -> list[Any]:
        """This field of each message, as the client names it."""
        return list(map(getattr(self._kind, field), self._messages))

    def milliseconds(self) -> list[int]:
        """Since 1970; below 0 for messages without a time."""
        return [ms for _, ms in self.all("timestamp")]

    def place(self, number: int) -> str:
        message = self._messages[number]
        return (
            f"topic '{message.topic()}', partition {message.partition()}, offset {message.offset()}"
        )


@dataclass(frozen=True)
class RecordLayout:
    """The form of records: the fields of a row, or values alone if there are none."""

    fields: tuple[str, ...] | None
    key: KeyFormat
    on_error: OnError

    def check(self, names: Sequence[str]) -> None:
        both = [name for name in self.fields or () if name != "value" and name in names]
        if both:
            raise UserError(
                f"'{both[0]}' is both a column of the values and a field of the record. Remove it "
                f"from fields=[...], or from the schema."
            )

    def column_names(self, names: list[str]) -> list[str]:
        """The columns of batches whose values have these columns."""
        if self.fields is None:
            return names
        more = [name for name in self.fields if name != "value"]
        return [*([] if names == ["value"] and "value" not in self.fields else names), *more]

    def batch(self, messages: Messages, decoder: Decoder, rejected: list[Rejected]) -> Batch:
        """The records; those that cannot be decoded are added to the rejected, or raise."""
        decode: Callable[[Values], Any] = decoder.frame if decoder.in_columns else decoder.objects
        messages = self._with_readable_keys(messages, rejected)
        if not len(messages):
            return []
        values = messages.all("value")
        try:
            decoded = decode(values)
        except BROKEN as error:
            good, broken = sound(decode, values)
            if not broken:
                raise ConnectorError(
                    f"from {messages.place(0)} on: the values can be decoded one by one but not "
                    f"together: {error}. Give the columns with schema={{...}}."
                ) from error
            self._reject(messages, values, broken, rejected)
            if not good:
                return []
            messages = messages.only(good)
            decoded = decode([values[place] for place in good])
        if decoder.in_columns:
            frame, counts = decoded
            return frame if self.fields is None else self._rows(frame, counts, messages)
        return decoded if self.fields is None else self._dicts(decoded, messages)

    def _with_readable_keys(self, messages: Messages, rejected: list[Rejected]) -> Messages:
        """Without messages whose key is not text, if it must be and `on_error` leaves them out."""
        if self.on_error == "fail" or self.key != "text" or "key" not in (self.fields or ()):
            return messages
        keys = messages.all("key")
        try:
            Text(False).objects(keys)
        except BROKEN:
            good, broken = sound(Text(False).objects, keys)
            values = messages.all("value")
            for number, why in broken.items():
                why = f"the key {(keys[number] or b'')[:80]!r} is not text: {why}"
                rejected.append(Rejected(values[number], why, messages.place(number)))
            return messages.only(good)
        return messages

    def _reject(
        self, messages: Messages, values: Values, broken: dict[int, str], rejected: list[Rejected]
    ) -> None:
        for number, why in broken.items():
            if self.on_error == "fail":
                raise ConnectorError(
                    f"{messages.place(number)}: the value cannot be decoded: {why}\n"
                    f"  value: {(values[number] or b'')[:200]!r}\n"
                    "Check value=...; on_error='skip' or 'dead_letter' continues without it."
                )
            rejected.append(Rejected(values[number], why, messages.place(number)))

    def _rows(self, frame: pl.DataFrame, counts: list[int] | None, messages: Messages) -> Batch:
        assert self.fields is not None
        self.check(frame.columns)
        if "value" not in self.fields and frame.columns == ["value"]:
            frame = frame.drop("value")
        columns = [self._column(name, messages) for name in self.fields if name != "value"]
        if counts is not None:
            rows = np.repeat(np.arange(len(counts)), counts)
            columns = [column.gather(rows) for column in columns]
        return frame.with_columns(columns) if frame.width else pl.DataFrame(columns)

    def _dicts(self, objects: list[Any], messages: Messages) -> list[Any]:
        assert self.fields is not None
        names = self.fields
        columns = [objects if name == "value" else self._list(name, messages) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _list(self, name: str, messages: Messages) -> list[Any]:
        if name == "headers":
            return [headers or [] for headers in messages.all("headers")]
        return self._column(name, messages).to_list()

    def _column(self, name: str, messages: Messages) -> pl.Series:
        kind = column_kinds(self.key)[name]
        match name:
            case "key":
                return self._keys(messages)
            case "headers":
                headers = [
                    [{"name": key, "value": value} for key, value in some or ()]
                    for some in messages.all("headers")
                ]
                return pl.Series(name, headers, dtype=kind)
            case "timestamp":
                times = pl.Series(name, messages.milliseconds(), dtype=pl.Int64)
                return times.set(times < 0, None).cast(kind)
        return pl.Series(name, messages.all(name), dtype=kind)

    def _keys(self, messages: Messages) -> pl.Series:
        keys = messages.all("key")
        try:
            return (Text(True) if self.key == "text" else Raw(True)).series(keys).alias("key")
        except pl.exceptions.PolarsError:
            _, broken = sound(Text(False).objects, keys)
            number = min(broken)
            raise ConnectorError(
                f"{messages.place(number)}: the key {(keys[number] or b'')[:80]!r} is not text. "
                'Read keys as bytes: key="bytes".'
            ) from None


class PartitionTimes:
    """Event time from the timestamps of records: a watermark per partition, and the lowest counts.

    Partitions are read at different speeds, so the greatest time in one means nothing for the
    others. A partition that has been read to its end and is silent for `idle_after_s` counts as
    being at the present, minus that time: the next record will have a current time.
    """

    def __init__(self, lateness_us: int | None, idle_after_s: float | None) -> None:
        self.on = lateness_us is not None
        self._lateness_us = lateness_us or 0
        self._idle_after_s = idle_after_s
        self.greatest: dict[Partition, int] = {}
        self._silent_since_s: dict[Partition, float] = {}
        self._wall_s: Callable[[], float] = lambda: 0.0
        self._steady_s: Callable[[], float] = lambda: 0.0
        self._began_s: float | None = None

    def keep_time(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        self._wall_s, self._steady_s = wall_s, steady_s

    def restore(self, greatest: Mapping[Partition, int]) -> None:
        self.greatest = {p: time for p, time in greatest.items() if time != NO_WATERMARK}
        self._silent_since_s = {}
        self._began_s = None

    def seen(
        self, partitions: Iterable[Partition], of_each: list[Partition], ms: list[int]
    ) -> None:
        if len(distinct := list(partitions)) == 1:
            self._note(distinct[0], max(ms))
            return
        numbers = {partition: number for number, partition in enumerate(distinct)}
        which = np.fromiter(map(numbers.__getitem__, of_each), np.int64, len(of_each))
        times = np.full(len(distinct), -1, np.int64)
        np.maximum.at(times, which, np.asarray(ms, np.int64))
        for partition, number in numbers.items():
            self._note(partition, int(times[number]))

    def _note(self, partition: Partition, ms: int) -> None:
        self._silent_since_s.pop(partition, None)
        if ms >= 0:
            before = self.greatest.get(partition, NO_WATERMARK)
            self.greatest[partition] = max(before, ms * 1000)

    def at_end(self, partition: Partition) -> None:
        self._silent_since_s.setdefault(partition, self._steady_s())

    def watermark(self, partitions: Collection[Partition]) -> int:
        """The time of the slowest of these, which are all that may give more records."""
        if not self.on:
            return NO_WATERMARK
        if self._idle_after_s is None:
            return min((self._of(p) for p in partitions), default=NO_WATERMARK)
        now_s = self._steady_s()
        if self._began_s is None:
            self._began_s = now_s
        since = self._silent_since_s
        present = int((self._wall_s() - self._idle_after_s) * 1e6) - self._lateness_us
        if not partitions:
            return present if now_s - self._began_s >= self._idle_after_s else NO_WATERMARK
        return min(
            max(self._of(p), present)
            if p in since and now_s - since[p] >= self._idle_after_s
            else self._of(p)
            for p in partitions
        )

    def slowest(self, partitions: Collection[Partition]) -> Partition | None:
        """The partition that determines the watermark, if one of the others is ahead of it."""
        if not self.on or len(partitions) < 2:
            return None
        reached = {partition: self.watermark([partition]) for partition in sorted(partitions)}
        slowest = min(reached, key=lambda partition: reached[partition])
        return slowest if reached[slowest] < max(reached.values()) else None

    def _of(self, partition: Partition) -> int:
        time = self.greatest.get(partition)
        return NO_WATERMARK if time is None else time - self._lateness_us
