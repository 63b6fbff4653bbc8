"""Machine code on disk, written by one process at a time.

Numba numbers the files of a function's signatures by what its index names, and takes no lock: two
processes that compile two signatures at once give both the same number, and the index then leads
from one signature to the code of the other. Code for other types computes nonsense without a word.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def one_at_a_time(dispatcher: F) -> F:
    """A function of numba's whose cache no two processes read or write at the same time."""
    files = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if files is not None:  # compilation may be switched off
        files.save = _alone(files, files.save)
        files.load = _alone(files, files.load)
    return dispatcher


def _alone(files: Any, work: F) -> F:
    @wraps(work)
    def guarded(*args: Any) -> Any:
        with _locked(f"{files._index_path}.lock"):
            return work(*args)

    return guarded  # type: ignore[return-value]


@contextmanager
def _locked(path: str) -> Iterator[None]:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # a folder that nobody can write to needs no lock
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
