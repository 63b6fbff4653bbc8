"""A filesystem whose reads and writes can be made to hang, from another process.

It is found by every process of a run the way any fsspec filesystem is: as an entry point of an
installed package, here a small one in a folder on PYTHONPATH. What hangs is a call on a path that
a named pipe stands for: it waits at the pipe until somebody opens its other end.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

PACKAGES = "packages"
ENTRY_POINTS = "[fsspec.specs]\nhanging = tests.chaos.hanging:HangingFileSystem\n"


class HangingFileSystem(AbstractFileSystem):
    """A local folder; `/folder/store/...` hangs while `/folder/hang/<verb>-<kind>` is there."""

    protocol = "hanging"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.local = LocalFileSystem(auto_mkdir=True)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        path = self._strip_protocol(path)
        wait_at_the_pipe("write", path)
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        self.local.pipe_file(temporary, value)
        if mode == "create":
            try:
                os.link(temporary, path)
            finally:
                os.unlink(temporary)
        else:
            os.replace(temporary, path)

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        path = self._strip_protocol(path)
        wait_at_the_pipe("read", path)
        return self.local.cat_file(path)

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        names = self.local.find(self._strip_protocol(path))
        return [name for name in names if not name.endswith(".tmp")]

    def rm_file(self, path: str) -> None:
        self.local.rm_file(self._strip_protocol(path))


def wait_at_the_pipe(verb: str, path: str) -> None:
    folder, separator, rest = path.partition("/store/")
    assert separator, path
    pipe = f"{folder}/hang/{verb}-{rest.partition('/')[0]}"
    try:
        os.close(os.open(pipe, os.O_RDONLY))  # blocks until the other end is opened
    except FileNotFoundError:
        return


@contextmanager
def hanging(folder: Path, what: str) -> Iterator[None]:
    """Inside, `what` hangs: "write-objects", "read-objects", "write-manifests", ..."""
    pipe = folder / "hang" / what
    os.mkfifo(pipe)
    try:
        yield
    finally:
        release = os.open(pipe, os.O_RDWR)
        pipe.unlink()
        os.close(release)


def install(folder: Path) -> None:
    """Make the filesystem known to processes with folder/PACKAGES on their PYTHONPATH."""
    (folder / "hang").mkdir()
    package = folder / PACKAGES / "hanging-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
