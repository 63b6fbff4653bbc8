"""The command's hand on a process that performs runs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from everstream.apps.cycle.outcome import Outcome
from everstream.apps.cycle.plan import Planned
from everstream.errors import RunFailed

Hear = Callable[[dict[str, Any]], None]
"""Told each event of a run: its `event`, its `run`, and what belongs to it."""


class Worker:
    """A process for the runs of one interface. It lives for as long as it is held."""

    def __init__(self, results: Path, hear: Hear = lambda event: None) -> None:
        self._results = results.absolute()
        self._hear = hear
        self._log = self._results / "log.txt"

    def __enter__(self) -> Self:
        self._results.mkdir(parents=True, exist_ok=True)
        read_end, write_end = os.pipe()
        with self._log.open("ab") as said:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "everstream.apps.cycle.child", str(write_end)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                pass_fds=[write_end],
                text=True,
            )
        os.close(write_end)
        self._events = os.fdopen(read_end)
        return self

    def perform(self, planned: Planned) -> Outcome:
        """One run, to its end."""
        assert self._child.stdin is not None
        wanted = {"results": str(self._results), "run": planned.to_json()}
        self._child.stdin.write(json.dumps(wanted) + "\n")
        self._child.stdin.flush()
        for line in self._events:
            event = json.loads(line)
            self._hear(event)
            if event["event"] == "outcome":
                return Outcome.from_json(event["body"])
            if event["event"] == "failed":
                raise RunFailed(f"{planned.benchmark}: {event['text']}")
        said = self._log.read_text(errors="replace")[-2000:]
        text = f"its process ended with code {self._child.wait()}; {self._log} says:\n{said}"
        self._hear({"event": "failed", "run": planned.number, "text": text})
        raise RunFailed(f"{planned.benchmark}: {text}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; harmless if it has ended."""
        assert self._child.stdin is not None
        if self._events.closed:
            return
        self._child.stdin.close()  # which ends it
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._events.close()
