"""The process that workers are forked from."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from everstream.engine.tasks.daemon import leaving_quietly

def worker(socket, known):
    raise getattr(__builtins__, sys.argv[1])("no more")

leaving_quietly(worker)(None, True)
"""


@pytest.mark.parametrize(
    ("error", "quiet"),
    [("BrokenPipeError", True), ("ConnectionResetError", True), ("ValueError", False)],
)
def test_a_worker_that_nobody_listens_to_leaves_without_a_word(error: str, quiet: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, error], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (done.stderr == "") == quiet
