"""Starts real `everstream` commands, reads what they say, and knows every process they left."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from tests.processes import PATIENCE_S, wait_until_gone

MARK = "EVERSTREAM_TEST_COMMAND"
ROOT = Path(__file__).parents[2]


class Command:
    """One command under test."""

    def __init__(
        self, *arguments: str, cwd: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.lines: list[str] = []
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "everstream", *arguments],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                # A command of its own has the master that users get, not the one tests share.
                **{
                    name: value for name, value in os.environ.items() if name != "EVERSTREAM_MASTER"
                },
                MARK: self.mark,
                "PYTHONPATH": path,
                "COLUMNS": "200",
                **(variables or {}),
            },
        )
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something holds; fails with all that was said if the command ends first."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline_s, f"no {what}:\n{self.output}"
            with self._more:
                self._more.wait(timeout=0.05)

    def says(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def end(self) -> int:
        """The exit code."""
        code = self.process.wait(timeout=PATIENCE_S)
        self._reader.join(timeout=PATIENCE_S)
        return code

    def driver(self) -> psutil.Process:
        """The driver process under the monitor."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def left_over(self) -> list[psutil.Process]:
        """Everything this command started that still runs."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def wait_until_all_gone(self) -> None:
        while left := self.left_over():
            wait_until_gone(process.pid for process in left)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            marked = process.environ().get(MARK) == self.mark
            return marked and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify_all()
