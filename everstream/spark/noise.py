"""Keeps what Spark prints and nobody can do anything about off the user's screen, and nothing else.

Spark's Java process writes to our standard error for as long as it lives: also what users print
in their own functions on this machine. So it gets a pipe instead, and a thread that passes
everything on but the few lines Java prints at its start, and what a worker says that ends when
Spark no longer listens to it.
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
_NOT_HEARD = "PySpark daemon failed to flush the output to the worker process:"
"""A traceback comes behind it, in one go with it, and an empty line."""


@contextmanager
def quiet_start() -> Iterator[None]:
    """A process started in here has its standard error filtered."""
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
            if line.startswith(_NOT_HEARD):
                while (line := next(lines, "")).strip():
                    pass
            elif not line.startswith(_NOISE):
                sys.stderr.write(line)
