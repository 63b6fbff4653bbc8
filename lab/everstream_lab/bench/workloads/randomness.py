"""Random numbers that belong to a position, not to a moment.

A generator that is asked again for record number k must give record k again, in any process and
from any shard. So there is no state here: the bits of record k are a hash of the seed and k, and
every choice about the record takes its own few of those 64 bits.
"""

from typing import Any, TypeAlias

import numpy as np

Bits: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_STEP = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def hash_start(seed: int, salt: int) -> int:
    """Where the hashes of one seed and salt begin."""
    return ((seed * 1_000_003 + salt) * _STEP) & 0xFFFF_FFFF_FFFF_FFFF


def bits_of(seed: int, salt: int, positions: Integers) -> Bits:
    """64 random bits for each position; another salt gives bits that have nothing in common."""
    with np.errstate(over="ignore"):
        x = positions.view(np.uint64) * np.uint64(_STEP)
        x += np.uint64(hash_start(seed, salt))
        # The finaliser of splitmix64, in place: this is the hot path of every generator.
        x ^= x >> np.uint64(30)
        x *= _MIX_1
        x ^= x >> np.uint64(27)
        x *= _MIX_2
        x ^= x >> np.uint64(31)
    return x


def below(bits: Bits, shift: int, width: int, limit: int | Bits) -> Integers:
    """A number from 0 to limit - 1 out of `width` bits from `shift` on: a multiplication, which
    is several times faster than a remainder. limit may be up to 2**(63 - width)."""
    chosen = (bits >> np.uint64(shift)) & np.uint64((1 << width) - 1)
    chosen *= np.uint64(limit) if isinstance(limit, int) else limit
    chosen >>= np.uint64(width)
    return chosen.view(np.int64)
