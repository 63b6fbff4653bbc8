"""Where generated kernels and their machine code are kept between processes."""

import os
from pathlib import Path

VARIABLE = "EVERSTREAM_KERNEL_CACHE"


def cache_folder() -> Path:
    """The folder, made if missing; only its owner can enter, since what lies there is executed."""
    base = os.environ.get(VARIABLE)
    if base is None:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(Path.home(), ".cache")
        base = os.path.join(caches, "everstream", "kernels")
    folder = Path(base)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
