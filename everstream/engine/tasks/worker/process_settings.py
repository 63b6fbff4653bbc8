"""What a worker asks for itself: freed memory is kept, sleeps end when they should, and Arrow has threads.

Left to itself, the C library gives every buffer of a megabyte back to the system and takes a new one for
the next, whose pages the system clears one by one: half the time that it takes to read a file. And the
system lets whoever sleeps sleep some 50 microseconds longer, to wake others up with it. Spark's workers
tell libraries to have one thread, which Arrow obeys and Polars does not: Arrow gets as many as Polars has
(`POLARS_MAX_THREADS`), so that both read files equally fast.
"""

import ctypes
from typing import Any

import polars as pl
import pyarrow as pa

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 << 20
"""Freed at the end of the heap, so much is kept."""
LARGEST_BYTES = 16 << 20
"""Larger buffers are given back at once."""
PR_SET_TIMERSLACK = 29
SLACK_NS = 1


def be_quick() -> None:
    """For this process, and for sleeps of this thread. Where the system has no such choice, it is slower."""
    pa.set_cpu_count(pl.thread_pool_size())
    try:
        library: Any = ctypes.CDLL(None)
    except OSError:
        return
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    if hasattr(library, "prctl"):
        library.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(SLACK_NS))
