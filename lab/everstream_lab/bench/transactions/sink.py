"""Where outcomes go: verdicts by event range, prepared before the commit that makes them count.

Each record is prepared durably before its epoch is committed. After a crash the log says
how far commits came; records beyond that are cut off and made again, so each event's
outcome stays exactly once.
"""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

_HEAD = struct.Struct("<QQI")  # first event, count, checksum of the packed verdicts

Verdicts = npt.NDArray[np.bool_]


class OutcomeSink:
    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._path = path

    def prepare(self, first_event: int, verdicts: Verdicts) -> None:
        packed = np.packbits(verdicts, bitorder="little").tobytes()
        self._file.write(_HEAD.pack(first_event, len(verdicts), zlib.crc32(packed)) + packed)
        os.fsync(self._file.fileno())

    def keep_until(self, next_event: int) -> None:
        """Cut off what lies at or beyond `next_event`, and any torn record."""
        keep = 0
        for end, first, verdicts in _records(self._path):
            if first + len(verdicts) > next_event:
                break
            keep = end
        self._file.truncate(keep)

    def close(self) -> None:
        self._file.close()


def _records(path: Path) -> list[tuple[int, int, Verdicts]]:
    data = path.read_bytes()
    at = 0
    records = []
    while at + _HEAD.size <= len(data):
        first, count, checksum = _HEAD.unpack_from(data, at)
        size = (count + 7) // 8
        packed = data[at + _HEAD.size : at + _HEAD.size + size]
        if len(packed) < size or zlib.crc32(packed) != checksum:
            break
        at += _HEAD.size + size
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=count, bitorder="little")
        records.append((at, first, bits.astype(np.bool_)))
    return records


def read_outcomes(path: Path) -> tuple[npt.NDArray[np.int64], Verdicts]:
    """Every event number with its verdict, in file order: duplicates and gaps would show."""
    records = _records(path)
    if not records:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    events = [np.arange(first, first + len(bits)) for _, first, bits in records]
    return np.concatenate(events), np.concatenate([bits for _, _, bits in records])
