"""Settings of a worker's process: freed memory is kept, sleeps end on time, and Arrow has threads.

By default, the C library returns every buffer of a megabyte to the system and takes a new one for
the next, whose pages the system clears one by one: half the time of reading a file. The system also
extends sleeps by some 50 microseconds, to wake several processes together. Spark's workers limit
libraries to one thread, which Arrow obeys and Polars does not: Arrow gets as many threads as Polars
(`POLARS_MAX_THREADS`), so that both read files equally fast.
"""

import ctypes
from typing import Any

import polars as pl
import pyarrow as pa

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 << 20
"""How much freed memory is kept at the end of the heap."""
LARGEST_BYTES = 16 << 20
"""Larger buffers are returned at once."""
PR_SET_TIMERSLACK = 29
SLACK_NS = 1


def be_quick() -> None:
    """For this process, and for sleeps of this thread. Has no effect where the system lacks these."""
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
