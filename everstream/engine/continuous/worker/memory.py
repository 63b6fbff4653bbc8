"""Memory: how much this machine has, which processes the kernel killed, and what a worker may use."""

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from everstream.core.memory_guard import MemoryGuard, Strain
from everstream.errors import EnvironmentFault
from everstream.runtime.runner import ShardRunner

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


_STATM: Final = Path("/proc/self/statm")


@dataclass
class MemoryWatch:
    """Keeps a worker within its memory limit: measures, warns, and at the limit names the operator."""

    limit_bytes: int
    runners: Collection[ShardRunner]
    takes_in: Callable[[ShardRunner], bool]
    """Whether a shard has input from outside this worker."""
    warn: Callable[[int, int], None]
    """Called once with the used bytes and the limit."""

    def __post_init__(self) -> None:
        self._guard = MemoryGuard(self.limit_bytes)
        self._warned = False

    def holds(self, runner: ShardRunner) -> bool:
        """Whether this shard should take no input for now."""
        return self._guard.strain is Strain.HELD and self.takes_in(runner)

    def look(self, now_s: float) -> None:
        used_bytes = own_memory_bytes()
        if used_bytes is None or not self._guard.look(used_bytes, now_s):
            return
        limit = in_words(self.limit_bytes)
        match self._guard.strain:
            case Strain.NONE | Strain.IN_VAIN:
                pass
            case Strain.HELD:
                if not self._warned:
                    self._warned = True
                    self.warn(used_bytes, self.limit_bytes)
            case Strain.OVER:
                runner, most = max(
                    ((runner, _largest(runner)) for runner in self.runners),
                    key=lambda pair: pair[1][2],
                )
                operator, keys, about_bytes = most
                runner.fail(
                    EnvironmentFault(
                        f"a worker has used all of its {limit} (worker_memory). Most of it is the "
                        f"state of '{operator}' in shard {runner.shard.id.number}: about "
                        f"{_about(keys):,} keys, {in_words(_about(about_bytes))}. Keep that on disk "
                        "with state='disk', give the operator more shards on more workers, or raise worker_memory."
                    )
                )
            case _:
                assert_never(self._guard.strain)


def own_memory_bytes() -> int | None:
    """The memory of this process without pages of files; None if the system does not provide it."""
    try:
        fields = _STATM.read_text().split()
    except OSError:
        return None
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def _about(number: int) -> int:
    """Rounded to one digit, so that the same failure gives the same message when it happens again."""
    return round(number, 1 - len(str(number)))


def _largest(runner: ShardRunner) -> tuple[str, int, int]:
    """The operator with the largest state, its keys, and their approximate size in bytes."""
    sizes = runner.chain.state.sizes()
    if not sizes:
        return (runner.shard.id.operator, 0, 0)
    operator = max(sizes, key=lambda name: sizes[name][1])
    return (operator, *sizes[operator])
