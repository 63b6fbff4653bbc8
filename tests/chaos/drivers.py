"""Drivers in processes of their own, which tell their epochs and can be killed."""

import os
import subprocess
import sys
from pathlib import Path

from .conftest import MASTER

SCRIPT = """
import sys
from pathlib import Path
import everstream as es
from everstream.spark.listener import Listener
from tests.chaos.conftest import killable
from tests.chaos.places import store_of

class Tell(Listener):
    def epoch(self, manifest):
        print("epoch", manifest.epoch, flush=True)

folder = Path(sys.argv[1])
result = killable(folder).run(
    checkpoint=es.Coordinated(every="200ms"), store=store_of(folder), max_restarts=50,
    master=sys.argv[2], workers=int(sys.argv[3]), listener=Tell(), kill=sys.argv[5:],
    take_over=sys.argv[4] == "taking over",
)
print("outcome", result.outcome.value, "from", result.resumed_from, flush=True)
"""


def start(
    folder: Path, *kills: str, master: str = MASTER, workers: int = 6, how: str = "alone"
) -> "subprocess.Popen[str]":
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), master, str(workers), how, *kills],
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_line(process: "subprocess.Popen[str]", start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise AssertionError(f"the driver ended without saying {start!r}")
