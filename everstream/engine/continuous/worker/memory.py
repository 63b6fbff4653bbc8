"""The kernel's view of memory on this machine: how much there is, and which processes it killed."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
KILLS = "oom_kill"
KMSG = Path("/dev/kmsg")
CLOCKS_APART_S = 2.0
"""The maximum difference between the clock of the kernel's log and ours."""
_KILLED = re.compile(
    r"^\d+,\d+,(?P<at_us>\d+),[^;]*;(?P<group>Memory cgroup )?[Oo]ut of memory.*: "
    r"Killed process (?P<pid>\d+) .*anon-rss:(?P<kb>\d+)kB"
)


class MemoryKills:
    """How often the kernel has killed a process for lack of memory since this was created."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._before = self._count()

    def since(self) -> int | None:
        """None if the kernel does not provide it."""
        now = self._count()
        return None if now is None or self._before is None else now - self._before

    def _count(self) -> int | None:
        return _value(self._root / "proc/vmstat", KILLS)


@dataclass(frozen=True)
class Starved:
    """The kernel's record of a process that it killed for lack of memory."""

    taken_bytes: int
    in_group: bool
    """Whether its control group (such as a container) was full, whatever the machine has left."""


class KernelWords:
    """The kernel's messages since this was created, if we may read them."""

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._since_s = time.monotonic() - CLOCKS_APART_S

    def of(self, pid: int) -> Starved | None:
        """The kernel's record of killing this process; the newest if there are several."""
        found = None
        for said in self._lines():
            match = _KILLED.search(said)
            if match and int(match["pid"]) == pid and int(match["at_us"]) / 1e6 >= self._since_s:
                found = Starved(int(match["kb"]) * 1024, match["group"] is not None)
        return found

    def _lines(self) -> Iterator[str]:
        try:
            source = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            while piece := _read(source):
                yield from piece.splitlines()
        finally:
            os.close(source)


def _read(source: int) -> str:
    """One record, or as much as there is; "" at the end."""
    while True:
        try:
            return os.read(source, 1 << 16).decode(errors="replace")
        except BrokenPipeError:  # the next record has been overwritten
            continue
        except OSError:
            return ""


def memory_bytes(root: Path = ROOT) -> int | None:
    """The total memory for processes of this machine or container."""
    total_kb = _value(root / "proc/meminfo", "MemTotal:")
    limits = [*_limits(root), *([] if total_kb is None else [total_kb * 1024])]
    return min(limits, default=None)


def in_words(size_bytes: float) -> str:
    """1.5 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.4g} TB"


def _limits(root: Path) -> list[int]:
    """The limits of our control groups, of either version."""
    found = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            place = root / "sys/fs/cgroup" / group.lstrip("/") / "memory.max"
        elif "memory" in controllers.split(","):
            place = root / "sys/fs/cgroup/memory" / group.lstrip("/") / "memory.limit_in_bytes"
        else:
            continue
        found += [int(text) for text in _lines(place) if text.isdigit()]
    return found


def _value(path: Path, name: str) -> int | None:
    for line in _lines(path):
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
