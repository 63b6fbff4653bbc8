"""Debian's packages for tests: installed once, whichever of the test processes comes first."""

import fcntl
import subprocess
import tempfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
NO_WAY = 3
"""A script's exit code when it is not allowed to install anything."""


def install(what: str) -> None:
    """Run scripts/WHAT.sh; skips where this machine gives us no way to install it.

    Any other trouble is a failure.
    """
    with (Path(tempfile.gettempdir()) / f"everstream-{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
        command = [str(SCRIPTS / f"{what}.sh")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    if done.returncode == NO_WAY:
        pytest.skip(done.stderr.strip())
    if done.returncode:
        pytest.fail(f"{what} could not be installed:\n{done.stderr}{done.stdout}")
