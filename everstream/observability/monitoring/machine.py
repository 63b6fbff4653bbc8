"""CPU and memory use of the machine and of a tree of processes, as the kernel counts them.

The kernel counts CPU time in steps of 10 ms, so over 50 ms a share is accurate to a fifth of a
core.
"""

import os
import socket
from typing import Any, TypeAlias

from everstream.extras import extra

LOOK_FOR_PROCESSES_EVERY_S = 1.0
"""Scanning all processes takes milliseconds: known ones are read each time, new ones found later."""
KB = 1024

Cells: TypeAlias = dict[str, float | int | str | None]
"""A row of the table, or a part of one: column -> value."""


class Machine:
    """This machine, and a process on it with all its descendants."""

    def __init__(self, pid: int | None = None) -> None:
        with extra("monitor"):
            import psutil
        self._psutil = psutil
        self.name = socket.gethostname()
        self.cores: int = psutil.cpu_count() or 1
        self._root = psutil.Process(pid if pid is not None else os.getpid())
        self._family: dict[int, Any] = {}
        self._used_s: dict[int, float] = {}
        self._looked_s = float("-inf")
        self._read_s: float | None = None
        psutil.cpu_percent(percpu=True)  # the first call only sets the baseline

    def read(self, now_s: float) -> Cells:
        """The current values; shares of CPU cover the time since the last call."""
        cores = self._psutil.cpu_percent(percpu=True)
        return {
            "cpu_percent": round(sum(cores) / len(cores), 1),
            "memory_total_kb": self._psutil.virtual_memory().total // KB,
            **self.memory("memory"),
            **self._processes(now_s),
            **{f"core_{number}_percent": share for number, share in enumerate(cores)},
        }

    def memory(self, prefix: str) -> Cells:
        """What the machine has free, available and in use."""
        now = self._psutil.virtual_memory()
        kinds = ("free", "available", "used")
        return {f"{prefix}_{kind}_kb": getattr(now, kind) // KB for kind in kinds}

    def _processes(self, now_s: float) -> Cells:
        if now_s >= self._looked_s + LOOK_FOR_PROCESSES_EVERY_S:
            self._looked_s = now_s
            self._find_processes()
        spent_s, memory, used_s = 0.0, 0, {}
        for pid, process in list(self._family.items()):
            try:
                with process.oneshot():
                    times, resident = process.cpu_times(), process.memory_info().rss
            except (self._psutil.NoSuchProcess, self._psutil.AccessDenied):
                del self._family[pid]
                continue
            used_s[pid] = times.user + times.system
            spent_s += max(0.0, used_s[pid] - self._used_s.get(pid, used_s[pid]))
            memory += resident
        passed_s = 0.0 if self._read_s is None else now_s - self._read_s
        self._used_s, self._read_s = used_s, now_s
        return {
            "process_cpu_percent": round(100 * spent_s / passed_s, 1) if passed_s > 0 else None,
            "process_memory_kb": memory // KB,
            "processes": len(used_s),
        }

    def _find_processes(self) -> None:
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except self._psutil.NoSuchProcess:
            processes = []
        # The number may belong to another process by now; psutil's equality checks that.
        known = self._family
        self._family = {
            process.pid: known[process.pid] if known.get(process.pid) == process else process
            for process in processes
        }
        for pid in self._used_s.keys() - self._family.keys():
            del self._used_s[pid]
