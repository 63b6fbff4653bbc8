"""Life signs of a host: it tells the driver that it lives, and leaves a trace of what it is at.

A thread of its own beats whatever the host is busy with, unless that holds Python's interpreter
lock: then nothing is heard of the process although it lives. Python's fault handler needs no lock.
It writes the stack of every thread to a file when the driver sends a signal, and when the process
dies of one; who leaves by `os._exit` is noted there, too. The driver, on the same machine, reads it.
"""

import faulthandler
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import zmq

from everstream.core.ids import TaskNumber
from everstream.spark.endpoints import Address, Doors
from everstream.spark.process_use import ProcessUse, Used, peak_bytes
from everstream.spark.talk import Beat

BEAT_EVERY_S = 0.25
STACKS = "stacks"
EXIT = "Everstream: os._exit "
"""Begins the line that is left when something in a host calls `os._exit`."""
ASK = signal.SIGUSR1
NOT_THEIRS = ("/everstream/", "/lib/python")
"""Parts of the names of files that no user wrote: ours, Python's and installed packages'."""


class LifeSign:
    """Tells the driver that this process lives; ends it if driver or parent are gone."""

    def __init__(
        self,
        doors: Doors,
        driver: Address,
        timeout_s: float,
        number: TaskNumber,
        attempt: int,
        *,
        measures: bool = True,
    ) -> None:
        """measures: what the process uses goes along."""
        self.heard_s = time.monotonic()
        self._parent = os.getppid()
        self._timeout_s = timeout_s
        self._stop = threading.Event()
        self._stacks = open(os.path.join(doors.folder, STACKS), "w")  # noqa: SIM115
        faulthandler.enable(self._stacks)
        faulthandler.register(ASK, self._stacks)
        self._leave = os._exit
        self._pid = os.getpid()
        os._exit = self._say_and_leave
        beating = doors.connect(zmq.DEALER, driver, f"beat-{number}/{attempt}".encode())
        beat = partial(Beat, number, attempt)
        self._use = ProcessUse() if measures else None
        self._thread = threading.Thread(
            target=self._loop, args=(beating, beat), name="everstream-life", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._use is not None:
            self._use.close()
        os._exit = self._leave
        faulthandler.unregister(ASK)
        signal.signal(ASK, signal.SIG_IGN)
        faulthandler.disable()
        self._stacks.close()

    def _say_and_leave(self, status: int) -> NoReturn:
        """In place of `os._exit`, which tells nobody. Children of this process just leave."""
        if os.getpid() == self._pid:
            print(f"\n{EXIT}{status}", file=self._stacks, flush=True)
            faulthandler.dump_traceback(self._stacks, all_threads=False)
        self._leave(status)

    def _loop(self, beating: "zmq.Socket[bytes]", beat: Callable[[Used], Beat]) -> None:
        try:
            self._beat_until_stopped(beating, beat)
        except BaseException:  # a host that cannot say that it lives is taken for dead: be it
            traceback.print_exc()
            self._leave(1)

    def _beat_until_stopped(
        self, beating: "zmq.Socket[bytes]", beat: Callable[[Used], Beat]
    ) -> None:
        beaten_s = time.monotonic()
        while not self._stop.wait(BEAT_EVERY_S):
            used = Used(peak_bytes=peak_bytes()) if self._use is None else self._use.read()
            beating.send(pickle.dumps(beat(used)))
            while beating.poll(0):
                beating.recv()
                self.heard_s = time.monotonic()
            # While this thread could not run, it could not have heard anything either.
            now_s = time.monotonic()
            self.heard_s += max(0.0, now_s - beaten_s - 2 * BEAT_EVERY_S)
            beaten_s = now_s
            if os.getppid() != self._parent or self._silent():
                self._leave(1)
        beating.close()

    def _silent(self) -> bool:
        return time.monotonic() - self.heard_s > self._timeout_s


# The driver's side.


def is_awake(pid: int) -> bool:
    """Whether a process of this machine lives and is not stopped; False where nobody can tell."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "RSDI"


def folder_of(address: Address) -> Path:
    """Where the host that listens at this address, on this machine, keeps its files."""
    return Path(address.ipc.removeprefix("ipc://")).parent


def read_stacks(address: Address) -> str:
    """What the host that listens at this address, on this machine, has left of its stacks."""
    try:
        return (folder_of(address) / STACKS).read_text(errors="replace")
    except OSError:
        return ""


def at_work(text: str) -> str | None:
    """What a user wrote that a host was in the middle of, from the newest stacks in `text`."""
    stacks = text.rpartition("Fatal Python error")[2]
    for stack in reversed(stacks.split("\n\n")):
        lines = list(_frames(stack))
        if any("/everstream/runtime/runner.py" in line for line in lines):
            theirs = (line for line in lines if not any(part in line for part in NOT_THEIRS))
            return next(theirs, lines[0])
    return None


def _frames(stack: str) -> Iterator[str]:
    """`File "x.py", line 3 in f`, the innermost first."""
    for line in stack.splitlines():
        if line.lstrip().startswith("File "):
            yield line.strip()
