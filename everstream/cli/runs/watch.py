"""`everstream run --watch`: restarts a run when the file of its program changes.

A change stops the run with a checkpoint, and the changed program continues from it, under the same
rules as any upgrade. A program that is refused, or that fails, changes nothing in the store: the
command explains it and waits for the next change.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.supervise import Supervisor
from everstream.errors import UserError

LOOK_EVERY_S = 0.2


def file_of(target: str) -> Path:
    """The file of a program that is named as FILE.py or FILE.py:NAME."""
    path = Path(target.rpartition(":")[0] or target)
    if path.suffix != ".py":
        raise UserError(f"--watch needs a file, and '{target}' names a module: write FILE.py:NAME.")
    return path


class FileWatch:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._now()

    def has_changed(self) -> bool:
        """Whether the file differs from the last time; a file that is being replaced does not."""
        now = self._now()
        if now is None or now == self._seen:
            return False
        self._seen = now
        return True

    def _now(self) -> bytes | None:
        with suppress(OSError):
            return self._path.read_bytes()
        return None


class WatchedRun:
    """Runs a program, and again after each change, until the user stops it."""

    def __init__(
        self,
        command: RunCommand,
        run: Callable[[RunCommand, Callable[[Supervisor], None]], int],
        say: Callable[[str], None],
    ) -> None:
        """run: runs the command to its end, and calls the function with its supervisor first."""
        self._command = command
        self._run = run
        self._say = say
        self._path = file_of(command.target)
        self._watch = FileWatch(self._path)
        self._supervisor: Supervisor | None = None
        self._over = threading.Event()
        self._changed = False

    def to_the_end(self) -> int:
        """The exit code."""
        while True:
            self._over.clear()
            self._changed = False
            code = self._run(self._command, self._begin)
            self._over.set()
            self._command = self._command.once_started()
            outcome = "failed" if self._supervisor is None else self._supervisor.outcome
            if self._changed and outcome == "stopped":
                self._say(f"{self._path} has changed: continuing from the checkpoint")
            elif outcome in ("stopped", "killed"):
                return code
            else:
                self._say(
                    f"waiting for the next change of {self._path}, which continues from the last "
                    "checkpoint; Ctrl-C ends this command"
                )
                self._wait_for_change()

    def _begin(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        threading.Thread(target=self._stop_on_change, args=(supervisor,), daemon=True).start()

    def _stop_on_change(self, supervisor: Supervisor) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            if self._watch.has_changed():
                self._changed = True
                supervisor.stop()
                return

    def _wait_for_change(self) -> None:
        pause = threading.Event()
        while not self._changed and not self._watch.has_changed():
            pause.wait(LOOK_EVERY_S)
