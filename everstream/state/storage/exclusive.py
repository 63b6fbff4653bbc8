"""Exclusive create on an object store, verified by a test.

The order of manifests depends on one thing: of several writers that create the same object exactly
one succeeds. Filesystems have different options for it, some accept the option and ignore it, and
some check first and write then, so that two can succeed. So it is tested before the first object is
created: twice in a row, and by several writers at once.
"""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any, Final, TypeAlias

from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from everstream.errors import StoreError

Creating: TypeAlias = Callable[[str, bytes], None]
"""Puts bytes under a free name; raises an error if the name is taken."""

WAYS: Final[tuple[dict[str, Any], ...]] = ({"mode": "create"}, {"overwrite": False})
"""The options of fsspec filesystems: of most, and of Azure's."""
AT_ONCE: Final = 4

_memory_lock = threading.Lock()


def exclusive_create(filesystem: AbstractFileSystem, folder: str) -> Creating:
    """How to create an object on this filesystem, tested in this folder; or a StoreError."""
    if type(filesystem) is MemoryFileSystem:
        return _creating(filesystem, WAYS[0])  # under a lock, so there is nothing to test
    problems: list[str] = []
    problem: str | None
    for way in WAYS:
        create = _creating(filesystem, way)
        if type(filesystem).pipe_file is AbstractFileSystem.pipe_file:
            problem = "it checks whether an object exists and then writes, which two can do at once"
        else:
            problem = _problem_with(create, filesystem.cat_file, filesystem.rm_file, folder)
        if problem is None:
            return create
        problems.append(problem)
    raise _unfit(type(filesystem).__name__, problems[0])


def check_exclusive(
    create: Creating, read: Callable[[str], bytes], remove: Callable[[str], None], folder: str
) -> None:
    """Raise a StoreError unless a test in this folder shows that `create` is exclusive."""
    problem = _problem_with(create, read, remove, folder)
    if problem is not None:
        raise _unfit("what answers there", problem)


def _unfit(what: str, problem: str) -> StoreError:
    return StoreError(
        f"{what} cannot serve as a store: {problem}, so two drivers could both believe that they "
        "own it. Use a local folder, or an object store that creates an object only if it does "
        "not exist, as those of Amazon, Google and Azure do: s3://, gs:// or az://."
    )


def _creating(filesystem: AbstractFileSystem, way: dict[str, Any]) -> Creating:
    innermost = getattr(filesystem, "fs", filesystem)
    # The memory filesystem checks first and then writes; only one process uses it.
    lock = _memory_lock if isinstance(innermost, MemoryFileSystem) else nullcontext()

    def create(path: str, data: bytes) -> None:
        with lock:
            filesystem.pipe_file(path, data, **way)

    return create


def _problem_with(
    create: Creating, read: Callable[[str], bytes], remove: Callable[[str], None], folder: str
) -> str | None:
    """Why this way to create is not exclusive; None if it is, as far as a test can tell."""
    path = f"{folder}/{uuid.uuid4().hex}"
    try:
        try:
            create(f"{path}-1", b"first")
        except (TypeError, ValueError, NotImplementedError) as error:
            return f"it has no exclusive create ({type(error).__name__}: {error})"
        if not _refused(create, f"{path}-1", b"second"):
            return "it creates an object that exists already"
        if read(f"{path}-1") != b"first":
            return "it reports that an object exists already, and replaces it"
        ready = threading.Barrier(AT_ONCE)
        attempts = [b"%d" % number for number in range(AT_ONCE)]

        def attempt(data: bytes) -> bool:
            ready.wait()
            return not _refused(create, f"{path}-2", data)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            won = [
                data for data, won in zip(attempts, pool.map(attempt, attempts), strict=True) if won
            ]
        if len(won) > 1 or (won and read(f"{path}-2") != won[0]):
            return "if several writers create an object at once, more than one succeeds"
        return None
    finally:
        for number in (1, 2):
            with suppress(Exception):  # an object that cannot be removed is small and harmless
                remove(f"{path}-{number}")


def _refused(create: Creating, path: str, data: bytes) -> bool:
    """Whether it raised any error: each store has different ones for this."""
    try:
        create(path, data)
    except Exception:
        return True
    return False
