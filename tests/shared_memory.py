"""A temporary folder in memory, where there is such a place: an fsync there costs nothing."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED = Path("/dev/shm")


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as name:
        yield Path(name)
