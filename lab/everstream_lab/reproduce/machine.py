"""The machine on which something was measured, in a line."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe() -> str:
    """Cores, processor, memory, system and versions.

    >>> describe().split(" cores (")[0].isdigit()
    True
    """
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({_processor()}), {memory_gb:.0f} GB of memory, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"Spark {version('pyspark')}, Everstream {version('everstream')}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
