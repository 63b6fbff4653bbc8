"""The resource use of a worker's process: CPU, memory, and time spent in garbage collection.

The heartbeat thread reads it a few times a second.
"""

import gc
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Used:
    """Totals since the process started, unless noted otherwise."""

    cpu_s: float = 0.0
    """Of all its threads, in user and kernel mode."""
    memory_bytes: int | None = None
    """Currently resident; None if the system does not provide it."""
    peak_bytes: int = 0
    """The highest resident size so far."""
    collecting_s: float = 0.0
    """Spent in Python's garbage collection, since measuring started."""


class ProcessUse:
    """Measures the process it is created in, until it is closed."""

    def __init__(self) -> None:
        self._collecting_s = 0.0
        self._began_s = 0.0
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        gc.callbacks.remove(self._on_collection)

    def read(self) -> Used:
        resident = _resident_bytes()
        # The kernel updates its peak only now and then.
        peak = max(peak_bytes(), resident or 0)
        return Used(time.process_time(), resident, peak, self._collecting_s)

    def _on_collection(self, phase: str, _: dict[str, Any]) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._began_s = now_s
        else:
            self._collecting_s += now_s - self._began_s


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _resident_bytes() -> int | None:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None  # not Linux
