"""What a host frees it keeps for its next buffer, up to a bound.

Left to itself, the C library gives every buffer of a megabyte back to the system and takes a new one for
the next, whose pages the system clears one by one: half the time that it takes to read a file.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 << 20
"""Freed at the end of the heap, so much is kept."""
LARGEST_BYTES = 16 << 20
"""Larger buffers are given back at once."""


def keep_freed_memory() -> bool:
    """False where the C library has no such choice."""
    try:
        choose = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(choose(M_MMAP_THRESHOLD, LARGEST_BYTES) and choose(M_TRIM_THRESHOLD, KEPT_BYTES))
