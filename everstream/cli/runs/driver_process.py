"""Starts the driver's process: as a new Python, or as a fork of a supervisor that has only imported.

A fork saves the time of the imports, about half of what a short local run takes. A process with
threads must not be forked, nor one that has loaded the program itself, as an audit does: the driver
would load it a second time, under another name. So only the first driver of `everstream run` is a
fork: later there are threads that read from it.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import IO, NoReturn, Protocol

from everstream.cli.runs.arguments import RunCommand

HELD = (signal.SIGINT, signal.SIGTERM)
"""Signals that are blocked until the driver can handle them."""


class DriverProcess(Protocol):
    """What the supervisor needs of a driver; `subprocess.Popen` has it, too."""

    pid: int
    stdout: IO[str] | None
    """What the driver prints, if it was started with a pipe."""

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...


def start_driver(
    command: RunCommand, messages: int, asks: int, *, piped: bool, may_fork: bool
) -> DriverProcess:
    """messages: where it writes its messages; asks: where it reads requests.

    may_fork: whether this process has done nothing but import.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        if command.options.engine == "local" and may_fork and threading.active_count() == 1:
            return _ForkedDriver(command, messages, asks, piped)
        return _new_python(command, messages, asks, piped)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _new_python(command: RunCommand, messages: int, asks: int, piped: bool) -> DriverProcess:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "everstream.cli.runs.driver"),
            *(str(messages), str(asks), str(os.getpid()), command.to_json()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if piped else None,
        stderr=subprocess.STDOUT if piped else None,
        pass_fds=(messages, asks),
        start_new_session=True,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


class _ForkedDriver:
    def __init__(self, command: RunCommand, messages: int, asks: int, piped: bool) -> None:
        from everstream.cli.runs.driver import drive  # loaded once, for both processes

        self.stdout: IO[str] | None = None
        output = None
        if piped:
            read_end, output = os.pipe()
            self.stdout = open(read_end, errors="replace")  # noqa: SIM115
        self._process: BaseProcess = multiprocessing.get_context("fork").Process(
            target=_drive_forked, args=(drive, messages, asks, os.getpid(), command, output)
        )
        sys.stdout.flush()
        sys.stderr.flush()
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        if output is not None:
            os.close(output)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("driver", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, sig)


def _drive_forked(
    drive: Callable[[int, int, int, RunCommand], NoReturn],
    messages: int,
    asks: int,
    parent: int,
    command: RunCommand,
    output: int | None,
) -> None:
    os.setsid()
    os.environ["PYTHONUNBUFFERED"] = "1"
    if output is not None:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    drive(messages, asks, parent, command)
