"""The supervisor: starts the driver process, restarts it if it dies, and determines the outcome.

The driver has its own session, so Ctrl-C reaches only the supervisor. The first Ctrl-C asks the
driver to stop with a checkpoint, the second kills it. A driver that ends by a signal, or without
an error message, is replaced: the next one resumes from the store.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, BinaryIO

from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.driver_process import DriverProcess, start_driver
from everstream.cli.runs.driver_requests import Asker
from everstream.cli.runs.supervisor_log import SupervisorLog
from everstream.cli.say import FAILED, KILLED, OK, TIMED_OUT, USAGE
from everstream.cli.views.messages import (
    Answered,
    DriverFailed,
    DriverFinished,
    EventReported,
    Fault,
    Message,
    read_messages,
)
from everstream.engine.faults.kills import Kill
from everstream.engine.reporting.listener import sent
from everstream.events import DriverLost, Killing, Note, RunEvent, RunStarted
from everstream.pipeline.checkpointing import seconds

LOOK_EVERY_S = 0.1


class Supervisor:
    """Runs one command to its end; `outcome` and `log` describe how it went."""

    def __init__(
        self,
        command: RunCommand,
        show: Callable[[Message], None],
        passing: Callable[[str], None] | None = None,
        *,
        may_fork: bool = False,
    ) -> None:
        """`passing` gets the lines that the driver prints; without it the driver inherits our output.

        may_fork: whether this process has done nothing but import, so that a driver can be its fork.
        """
        self._may_fork = may_fork
        self._started: tuple[DriverProcess, BinaryIO] | None = None
        self.log = SupervisorLog()
        self.outcome = "failed"
        self._command = command
        self._show = show
        self.passing = passing
        timeout = command.options.timeout
        self._timeout_s = None if timeout is None else seconds(timeout)
        self._deadline_s: float | None = None
        self._stop_asked = 0
        self._stop_sent = False
        self.timed_out = False
        self._killed = False
        self._asker = Asker()

    def ask(self, action: str, wishes: Mapping[str, Any]) -> Future[str]:
        """Send a request to the driver; the future has its answer. From any thread."""
        return self._asker.ask(action, wishes)

    def stop(self) -> None:
        """Stop with a checkpoint, as the first Ctrl-C does. From any thread."""
        self._stop_asked = self._stop_asked or 1

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start the first driver, so that it loads while its screen does; then call `run`."""
        with self._heeding_signals():
            self._started = self._start()
            yield

    def run(self) -> int:
        """The exit code."""
        with self._heeding_signals():
            while True:
                died = self._run_driver()
                if died is None:
                    return self._exit_code()
                if self._stop_asked or self.timed_out:
                    self.outcome = "killed"
                    return KILLED if self._stop_asked else TIMED_OUT
                self.log.driver_died(died, time.monotonic())
                lost, limit = self.log.drivers_lost, self._command.options.recovery.max_restarts
                if lost > limit:
                    self._tell(DriverLost(died))
                    text = f"the driver died {lost} times ({died}); --max-restarts is {limit}"
                    self._hear(DriverFailed(Fault.RUN, text))
                    return self._exit_code()
                self._tell(DriverLost(died, lost, limit))

    def _run_driver(self) -> str | None:
        """Run one driver; returns how it died, or None if it ended normally."""
        messages: SimpleQueue[Message | None] = SimpleQueue()
        child, pipe = self._started or self._start()
        self._started = None
        if child.stdout is not None and self.passing is not None:
            threading.Thread(
                target=_pass_lines, args=(child.stdout, self.passing), daemon=True
            ).start()
        threading.Thread(target=_read_all, args=(pipe, messages), daemon=True).start()
        self._stop_sent = False
        while True:
            with suppress(Empty):
                message = messages.get(timeout=LOOK_EVERY_S)
                if message is None:
                    break
                self._hear(message)
            self._look_after(child)
        self._asker.detach()
        code = self._wait(child)
        end = self.log.end
        if isinstance(end, DriverFailed) and end.fault is Fault.LOST and not self._stop_asked:
            return f"Spark went away: {end.text.splitlines()[0]}"
        if end is not None:
            return None
        return _how(code)

    def _start(self) -> tuple[DriverProcess, BinaryIO]:
        read_end, write_end = os.pipe()
        asks_read, asks_write = os.pipe()
        child = start_driver(
            self._command,
            write_end,
            asks_read,
            piped=self.passing is not None,
            may_fork=self._may_fork and not self.log.drivers_lost,
        )
        os.close(write_end)
        os.close(asks_read)
        self._asker.attach(os.fdopen(asks_write, "wb"))
        return child, open(read_end, "rb")

    def _tell(self, event: RunEvent) -> None:
        """Handle an event that only the supervisor knows of."""
        self._hear(EventReported(sent(event), time.monotonic()))

    def _hear(self, message: Message) -> None:
        self.log.hear(message)
        match message:
            case EventReported(event=RunStarted(), at_s=at_s):
                self._command = self._command.once_started()
                if self._timeout_s is not None and self._deadline_s is None:
                    self._deadline_s = at_s + self._timeout_s
            case EventReported(event=Killing(kill=kill)):
                kills = self._command.kills
                given = next((k for k in kills if str(Kill.parse(k)) == kill), None)
                if given is not None:  # otherwise it was requested on the page
                    self._command = self._command.without_kill(given)
            case Answered():
                done = self._asker.heard(message)
                if done is not None and done.action == "interval":
                    every = done.wishes["every"]
                    text = every if isinstance(every, str) else f"{every}s"
                    self._command = self._command.with_settings(every=text)
        self._show(message)

    def _look_after(self, child: DriverProcess) -> None:
        """Pass on stop requests of the user, and the end of --timeout."""
        if self._stop_asked > 1 and not self._killed:
            self._killed = True
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        elif self._stop_asked and not self._stop_sent:
            self._stop_sent = True
            self._tell(Note("stop", "stopping with a checkpoint; Ctrl-C again to kill"))
            child.send_signal(signal.SIGINT)
        elif self._is_late() and not self._stop_sent:
            self._stop_sent = self.timed_out = True
            passed = f"--timeout {self._command.options.timeout} has passed"
            self._tell(Note("stop", f"{passed}: stopping with a checkpoint"))
            child.send_signal(signal.SIGTERM)

    def _is_late(self) -> bool:
        return self._deadline_s is not None and time.monotonic() > self._deadline_s

    def _wait(self, child: DriverProcess) -> int:
        """Wait for a driver that has closed its pipe; the user can still kill it."""
        while True:
            try:
                return child.wait(timeout=LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                self._look_after(child)

    def _exit_code(self) -> int:
        end = self.log.end
        if isinstance(end, DriverFinished):
            self.outcome = str(end.result["outcome"])
            stopped_by_time = self.timed_out and self.outcome == "stopped"
            return TIMED_OUT if stopped_by_time else OK
        assert isinstance(end, DriverFailed)
        if end.fault is Fault.STOPPED:
            self.outcome = "stopped"
            return TIMED_OUT if self.timed_out else OK
        self.outcome = "failed"
        return USAGE if end.fault is Fault.USAGE else FAILED

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            # Only a second Ctrl-C kills: a service manager may send SIGTERM twice.
            if number == signal.SIGINT or not self._stop_asked:
                self._stop_asked += 1

        heeded = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            heeded.append(signal.SIGHUP)
        before = {number: signal.signal(number, stop) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _read_all(pipe: BinaryIO, messages: "SimpleQueue[Message | None]") -> None:
    with pipe:
        for message in read_messages(pipe):
            messages.put(message)
    messages.put(None)


def _pass_lines(lines: "Iterator[str]", passing: Callable[[str], None]) -> None:
    for line in lines:
        passing(line.rstrip("\n"))


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"
