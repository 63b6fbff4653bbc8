"""Filters the lines that Java prints at its start from the user's screen, and nothing else.

Spark's Java process writes to our standard error as long as it runs, including what users print
in their functions on this machine. So it gets a pipe, and a thread forwards everything except the
few lines that users can do nothing about.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NOISE = (
    "WARNING: Using incubator modules",
    "Setting default log level",
    "To adjust logging level",
    "Using Spark's default log4j profile",
)


@contextmanager
def quiet_start() -> Iterator[None]:
    """The standard error of a process started in this block is filtered."""
    read_end, write_end = os.pipe()
    screen = os.dup(2)
    os.dup2(write_end, 2)
    os.close(write_end)
    threading.Thread(target=_pass_on, args=(read_end,), daemon=True, name="spark-stderr").start()
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def _pass_on(read_end: int) -> None:
    with os.fdopen(read_end, errors="replace") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                sys.stderr.write(line)
