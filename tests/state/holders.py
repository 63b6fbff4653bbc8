"""Another process that holds a store."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CHILD = """
import sys
from everstream.state.store_lock import held

with held(sys.argv[1], sys.argv[2], sys.argv[3] == "taking over"):
    print("held", flush=True)
    sys.stdin.readline()
print("let go", flush=True)
sys.stdin.readline()
"""


@contextmanager
def running(url: str, owner: str, how: str = "") -> Iterator["subprocess.Popen[str]"]:
    """A process that holds a store until it is told to let go, and lives on."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, url, owner, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    try:
        yield child
    finally:
        child.kill()
        child.communicate()
