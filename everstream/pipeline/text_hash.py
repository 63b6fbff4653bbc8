"""CRC-32 of every text of a column at once.

The same numbers as `zlib.crc32` of each, byte for byte, but a step of the loop takes the n-th byte
of all texts together, so a column of short keys costs a few passes instead of a call per text.
"""

import zlib
from typing import Any, TypeAlias

import numpy as np
import polars as pl

LONGEST = 24
"""Longer texts need too many passes: they are better hashed one by one."""
BLOCK = 8_192
"""So many texts at a time: what the passes make of them stays in the cache."""

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_TABLE = np.array([zlib.crc32(bytes([n]), 0xFFFFFFFF) ^ 0xFFFFFFFF for n in range(256)], np.uint32)


def crc32_column(texts: pl.Series, start: int) -> _Array | None:
    """`zlib.crc32(text, start)` of each text or binary value, 0 for null; None if one is long.

    >>> crc32_column(pl.Series(["apple", ""]), 0).tolist()
    [2838417488, 0]
    """
    array: Any = texts.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offset_bytes, data_bytes = array.buffers()
    count = len(texts)
    if data_bytes is None:
        return np.full(count, zlib.crc32(b"", start), np.uint32)
    offsets = np.frombuffer(offset_bytes, np.int64)[array.offset : array.offset + count + 1]
    data = np.frombuffer(data_bytes, np.uint8)
    lengths = np.diff(offsets)
    if lengths.max(initial=0) > LONGEST:
        return None
    code = np.full(count, start ^ 0xFFFFFFFF, np.uint32)
    for first in range(0, count, BLOCK):
        rows = slice(first, first + BLOCK)
        _advance(code[rows], data, offsets[:-1][rows], lengths[rows])
    code ^= np.uint32(0xFFFFFFFF)
    return code


def _advance(code: _Array, data: _Array, begins: _Array, lengths: _Array) -> None:
    """Take in all bytes of some texts; `code` is changed in place."""
    shortest = int(lengths.min())
    for place in range(int(lengths.max())):
        # Once some have ended only the others go on.
        rows: Any = slice(None) if place < shortest else np.flatnonzero(lengths > place)
        some = code[rows]
        at = (some ^ data[begins[rows] + place]) & np.uint32(0xFF)
        code[rows] = _TABLE[at] ^ (some >> np.uint32(8))
