"""flite for tests, from Debian's package."""

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

INSTALL = Path(__file__).parents[2] / "scripts" / "flite.sh"
NO_WAY = 3
"""The script's exit code when it is not allowed to install anything."""


def install_flite() -> None:
    """Skips where this machine gives us no way to install it; any other trouble is a failure."""
    if shutil.which("flite") is not None:
        return
    with (Path(tempfile.gettempdir()) / "everstream-flite.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
        done = subprocess.run([str(INSTALL)], capture_output=True, text=True, timeout=280)
    if done.returncode == NO_WAY:
        pytest.skip(done.stderr.strip())
    if done.returncode:
        pytest.fail(f"flite could not be installed:\n{done.stderr}{done.stdout}")
