"""Life signs of a worker: it tells the driver that it lives, and leaves a trace of what it is at.

A thread of its own beats whatever the worker is busy with, unless that holds Python's interpreter
lock: then nothing is heard of the process although it lives. Python's fault handler needs no lock.
It writes the stack of every thread to a file when the driver sends a signal, and when the process
dies of one; who leaves by `os._exit` is noted there, too. The driver, on the same machine, reads it.

The file begins with the folders of code that no user wrote, as this process has them: the driver
may have imported Everstream from elsewhere, and a user's project may have any name, ours included.
"""

import faulthandler
import os
import pickle
import re
import signal
import site
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import zmq

from everstream.core.ids import TaskNumber
from everstream.engine.tasks.transport.control_messages import Beat
from everstream.engine.tasks.transport.endpoints import Address, SocketFactory
from everstream.engine.tasks.worker.process_use import ProcessUse, Used, peak_bytes

BEAT_EVERY_S = 0.25
STACKS = "stacks"
EXIT = "Everstream: os._exit "
"""Begins the line that is left when something in a worker calls `os._exit`."""
ASK = signal.SIGUSR1
PACKAGE = str(Path(os.path.abspath(__file__)).parents[3])
"""The folder of our own code, in a checkout, an installation or an archive."""
OURS = "Everstream: package in "
"""Begins the first line of the file, which ends with the folder of the package."""
INSTALLED = "Everstream: installed code in "
"""Begins a line for each folder of Python's own and installed packages' code."""


class LifeSign:
    """Tells the driver that this process lives; ends it if driver or parent are gone."""

    def __init__(
        self,
        sockets: SocketFactory,
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
        self._stacks = open(os.path.join(sockets.folder, STACKS), "w")  # noqa: SIM115
        print(code_folders(), file=self._stacks, flush=True)
        faulthandler.enable(self._stacks)
        faulthandler.register(ASK, self._stacks)
        self._leave = os._exit
        self._pid = os.getpid()
        os._exit = self._say_and_leave
        beating = sockets.connect(zmq.DEALER, driver, f"beat-{number}/{attempt}".encode())
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
        except BaseException:  # a worker that cannot say that it lives is taken for dead: be it
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
    """Where the worker that listens at this address, on this machine, keeps its files."""
    return Path(address.ipc.removeprefix("ipc://")).parent


def read_stacks(address: Address) -> str:
    """What the worker that listens at this address, on this machine, has left of its stacks."""
    try:
        return (folder_of(address) / STACKS).read_text(errors="replace")
    except OSError:
        return ""


def code_folders() -> str:
    """The lines that tell a reader of this process's stacks which frames are not a user's."""
    import pyspark  # our daemon settles first which of those on the path is taken

    installed = {
        *(path for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))),
        *site.getsitepackages(),
        site.getusersitepackages(),
        os.path.dirname(os.path.abspath(pyspark.__file__)),
    }
    lines = [OURS + PACKAGE]
    lines += [INSTALLED + folder for folder in sorted(installed)]
    # The fault handler writes file names in ASCII, too.
    return "\n".join(lines).encode("ascii", "backslashreplace").decode()


class _Frame(NamedTuple):
    file: str
    text: str
    """`File "x.py", line 3 in f`."""


def at_work(text: str) -> str | None:
    """What a user wrote that a worker was in the middle of, from the newest stacks in `text`."""
    lines = text.splitlines()
    ours = _folders(lines, OURS)
    not_theirs = (*ours, *_folders(lines, INSTALLED), "<frozen ")
    runner = {folder + "runtime/runner.py" for folder in ours}
    stacks = text.rpartition("Fatal Python error")[2]
    for stack in reversed(stacks.split("\n\n")):
        frames = list(_frames(stack))
        if any(frame.file in runner for frame in frames):
            theirs = (frame for frame in frames if not frame.file.startswith(not_theirs))
            return next(theirs, frames[0]).text
    return None


def _folders(lines: list[str], mark: str) -> tuple[str, ...]:
    return tuple(line.removeprefix(mark) + "/" for line in lines if line.startswith(mark))


def _frames(stack: str) -> Iterator[_Frame]:
    """The innermost first."""
    for found in re.finditer(r'^ *(File "(.*)", line .*)$', stack, re.MULTILINE):
        yield _Frame(found[2], found[1])
