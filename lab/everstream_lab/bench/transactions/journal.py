"""Input events, persisted before they are processed, as MorphStreamR's spouts do.

A scheme that processes events again after a crash needs them; a source that can be asked again
would hide what they cost. Each batch is an Arrow stream behind a head, and durable when `append`
returns. A batch that a crash has torn does not count: it was not processed.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

_HEAD = struct.Struct("<QQQ")  # first event, number of events, bytes


@dataclass(frozen=True)
class _Kept:
    """A batch in the file."""

    first: int
    count: int
    body: memoryview

    def events(self) -> pl.DataFrame:
        with pa.ipc.open_stream(pa.py_buffer(self.body)) as reader:
            events = pl.from_arrow(reader.read_all())
        assert isinstance(events, pl.DataFrame)
        return events


class InputJournal:
    """The events of a run, in one file: those of an earlier process are read, and it continues."""

    def __init__(self, path: Path) -> None:
        self.next_event = 0
        """The first event that is not in it."""
        self._kept: list[_Kept] = []
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
        self._file.truncate(self._find(memoryview(path.read_bytes())))

    def append(self, first: int, events: pl.DataFrame) -> None:
        """Make these events durable; what it has already is left out."""
        events = events[max(0, self.next_event - first) :]
        if not len(events):
            return
        first = max(first, self.next_event)
        sink = pa.BufferOutputStream()
        table = events.to_arrow()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
        self._file.write(_HEAD.pack(first, len(events), len(body)) + body)
        os.fdatasync(self._file.fileno())
        self.next_event = first + len(events)

    def read(self, first: int, last: int) -> pl.DataFrame | None:
        """These events, as an earlier process kept them; None if it did not keep them all."""
        parts = [
            one.events()[max(0, first - one.first) : last - one.first]
            for one in self._kept
            if one.first < last and one.first + one.count > first
        ]
        if not parts or sum(map(len, parts)) < last - first:
            return None
        return pl.concat(parts)

    def close(self) -> None:
        self._file.close()

    def _find(self, data: memoryview) -> int:
        """Find all whole batches; returns where they end."""
        at = 0
        while at + _HEAD.size <= len(data):
            first, count, size = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + size
            if end > len(data):
                break
            self._kept.append(_Kept(first, count, data[at + _HEAD.size : end]))
            self.next_event = first + count
            at = end
        return at
