"""What the kernel tells of memory on this machine: how much there is, and whom it killed for it."""

from pathlib import Path

ROOT = Path("/")
KILLS = "oom_kill"


class MemoryKills:
    """How often the kernel has killed a process for want of memory since we began to look."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._before = self._count()

    def since(self) -> int | None:
        """None where the kernel does not tell."""
        now = self._count()
        return None if now is None or self._before is None else now - self._before

    def _count(self) -> int | None:
        return _value(self._root / "proc/vmstat", KILLS)


def memory_bytes(root: Path = ROOT) -> int | None:
    """What processes of this machine, or of this container, can have in all."""
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
    """Of the control groups we are in, of either version."""
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
