"""A process that performs the runs of one interface: `python -m everstream.apps.cycle.child FD`.

What it measures is then its own, not that of the command that started it. It reads one run after
the other from its standard input, tells what happens as lines of JSON on the given descriptor, and
ends when its input does: a killed command leaves nothing running.
"""

import json
import multiprocessing
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

from everstream.apps.application import Tell
from everstream.apps.cycle.perform import perform
from everstream.apps.cycle.plan import Planned
from everstream.errors import EverstreamError, InternalError


def main() -> int:
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as pipe:
        teller = _Teller(pipe)
        while True:
            wanted = json.loads(asked.get())
            planned = Planned.from_json(wanted["run"])
            teller.run = planned.number
            try:
                outcome = perform(planned, Path(wanted["results"]), teller.step)
            except EverstreamError as error:
                bug = isinstance(error, InternalError)
                teller.tell("failed", text=traceback.format_exc() if bug else str(error))
            except Exception:
                teller.tell("failed", text=traceback.format_exc())
            else:
                teller.tell("outcome", body=outcome.to_json())


def _listen(asked: "queue.SimpleQueue[str]") -> None:
    # Not through sys.stdin: its lock, held here, would be torn if a library forks.
    left = b""
    while data := os.read(0, 65536):
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            asked.put(line.decode())
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)


class _Teller:
    def __init__(self, pipe: IO[str]) -> None:
        self._pipe = pipe
        self.run = 0

    def tell(self, event: str, **what: Any) -> None:
        self._pipe.write(json.dumps({"event": event, "run": self.run, **what}) + "\n")

    def step(self, name: str) -> Tell:
        def progress(done: int, total: int) -> None:
            # About a hundred lines a run, however many items there are.
            share = done * 100 // max(total, 1)
            if share != shares[0]:
                shares[0] = share
                self.tell("progress", step=name, done=done, total=total)

        shares = [-1]
        return progress


if __name__ == "__main__":
    sys.exit(main())
