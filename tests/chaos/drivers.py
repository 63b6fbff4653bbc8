"""Drivers in processes of their own, which tell their epochs and can be killed, and the last one here.

Only a driver that is killed, paused or signalled needs a process, and a Spark, of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import everstream as es
from everstream.core.orders import Outcome
from everstream.engine.result import RunResult

from .conftest import MASTER, killable
from .places import store_of

SCRIPT = """
import sys
from pathlib import Path
import everstream as es
from tests.chaos.conftest import killable
from tests.chaos.places import store_of

def tell(event):
    if isinstance(event, es.events.EpochStable):
        print("epoch", event.epoch, flush=True)

folder = Path(sys.argv[1])
result = killable(folder).run(
    checkpoint=es.Coordinated(every="200ms"), store=store_of(folder), max_restarts=50,
    master=sys.argv[2], workers=int(sys.argv[3]), listener=tell, kill=sys.argv[4:],
)
print("outcome", result.outcome.value, "from", result.resumed_from, flush=True)
"""


def start(
    folder: Path, *kills: str, master: str = MASTER, workers: int = 6
) -> "subprocess.Popen[str]":
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), master, str(workers), *kills],
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(folder: Path, take_over: bool = False) -> RunResult:
    """Resume, in this process and its Spark, what drivers have begun, and run it to its end."""
    result = killable(folder).run(
        checkpoint=es.Coordinated(every="200ms"),
        store=store_of(folder),
        max_restarts=50,
        master=MASTER,
        workers=6,
        take_over=take_over,
    )
    assert result.outcome is Outcome.FINISHED
    return result


def wait_for_line(process: "subprocess.Popen[str]", start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise AssertionError(f"the driver ended without saying {start!r}")
