"""A log that a newer version has written is refused, and not taken for one that ends early."""

import struct

import numpy as np
import pytest

from everstream.transactions.errors import LogError
from everstream.transactions.log import Block, decode, encode


def test_a_whole_block_in_a_newer_format_is_refused_and_a_damaged_one_ends_the_log() -> None:
    data = encode(Block(1, 2, 0, 5, {"a": np.arange(3)}))
    (magic,) = struct.unpack_from("<I", data)
    newer = struct.pack("<I", magic + 1) + data[4:]
    assert len(list(decode(data + b"torn"))) == 1
    with pytest.raises(LogError, match="newer Everstream"):
        list(decode(data + newer))
    assert len(list(decode(data + newer[:-1] + b"?"))) == 1
