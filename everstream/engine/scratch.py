"""Temporary folders named after the process that made them, so that abandoned ones can be removed.

A process that gets SIGKILL cannot clean up. Its folder's name identifies the process: the next run
removes folders whose process is provably gone. A process is identified by its number, its start
time and the namespace of its number, so that neither a reused number nor another container on the
same disk can be mistaken for it.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 80
"""The system allows 107 characters for a unix socket; the rest is for its name."""
LONGEST_NAME = 50
_NAME = re.compile(r"everstream-(\d+)-(\d+)-(\d+)-\w+")


def make_folder() -> str:
    """A folder only we can enter (mode 0700), with a name short enough for unix sockets in it."""
    maker = _this_process()
    prefix = "everstream-" + ("-".join(map(str, maker)) + "-" if maker else "")
    return tempfile.mkdtemp(prefix=prefix, dir=_parent())


@contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder for the state of a run; removed when the run ends."""
    folder = make_folder()
    try:
        yield folder
    finally:
        # A worker that is shutting down may still be writing. That must not hide how the run ended,
        # so files that cannot be removed now stay in the system's temporary folder.
        shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    parent = Path(tempfile.gettempdir())
    return parent if len(str(parent)) <= LONGEST - LONGEST_NAME else Path("/tmp")


def sweep() -> None:
    """Remove the folders of Everstream processes that are gone."""
    here = _this_process()
    if here is None:
        return
    for folder in _parent().glob("everstream-*-*-*-*"):
        found = _NAME.fullmatch(folder.name)
        if found is None or int(found[1]) != here[0]:
            continue
        try:
            ours = folder.stat().st_uid == os.geteuid()
        except FileNotFoundError:  # another process was faster
            continue
        if ours and _start_of(int(found[2])) != int(found[3]):
            shutil.rmtree(folder, ignore_errors=True)


def _this_process() -> tuple[int, int, int] | None:
    """Namespace, number and start time; None where the system does not provide them."""
    start = _start_of(os.getpid())
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    return None if start is None else (namespace, os.getpid(), start)


def _start_of(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[19])
