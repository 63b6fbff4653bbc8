"""Life signs of a worker: heartbeats to the driver, and a trace of its current work.

A separate thread sends heartbeats whatever the worker does, unless something holds Python's
interpreter lock: then the process is silent although it is alive. Python's fault handler needs no
lock. It writes the stack of every thread to a file when the driver sends a signal, and when the
process crashes; calls of `os._exit` are recorded there, too. A driver on the same machine reads it.

The file starts with the folders of code that is not the user's, as this process sees them: the
driver may have imported Everstream from elsewhere, and a user's project may have our name.
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
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import zmq

from everstream.core.ids import TaskNumber
from everstream.engine.continuous.transport.control_messages import Beat
from everstream.engine.continuous.transport.endpoints import Address, SocketFactory
from everstream.engine.continuous.worker.process_use import ProcessUse, Used, peak_bytes

BEAT_EVERY_S = 0.25
STACKS = "stacks"
EXIT = "Everstream: os._exit "
"""Prefix of the line that is written when something in a worker calls `os._exit`."""
ASK = signal.SIGUSR1
PACKAGE = str(Path(os.path.abspath(__file__)).parents[3])
"""The folder of Everstream's code, in a checkout, an installation or an archive."""
OURS = "Everstream: package in "
"""Prefix of the first line of the file, which ends with the folder of the package."""
_FRAME = re.compile(r'^ *(File "(.*)", line .*)$', re.MULTILINE)
INSTALLED = "Everstream: installed code in "
"""Prefix of a line for each folder of Python's code and of installed packages."""


class LifeSign:
    """Tells the driver that this process is alive; ends it if driver or parent are gone."""

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
        """measures: whether heartbeats include the resource use of the process."""
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
        """Replaces `os._exit`, which leaves no trace. Children of this process just exit."""
        if os.getpid() == self._pid:
            print(f"\n{EXIT}{status}", file=self._stacks, flush=True)
            faulthandler.dump_traceback(self._stacks, all_threads=False)
        self._leave(status)

    def _loop(self, beating: "zmq.Socket[bytes]", beat: Callable[[Used], Beat]) -> None:
        try:
            self._beat_until_stopped(beating, beat)
        except BaseException:  # a worker without heartbeats is taken for dead: exit
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
            # While this thread could not run, it could not have received anything either.
            now_s = time.monotonic()
            self.heard_s += max(0.0, now_s - beaten_s - 2 * BEAT_EVERY_S)
            beaten_s = now_s
            if os.getppid() != self._parent or now_s - self.heard_s > self._timeout_s:
                self._leave(1)
        beating.close()


# The driver's side.


def is_awake(pid: int) -> bool:
    """Whether a process of this machine is alive and not stopped; False if it is unknown."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "RSDI"


def folder_of(address: Address) -> Path:
    return Path(address.ipc.removeprefix("ipc://")).parent


def read_stacks(address: Address) -> str:
    """The stacks written by the worker that listens at this address, on this machine."""
    try:
        return (folder_of(address) / STACKS).read_text(errors="replace")
    except OSError:
        return ""


def code_folders() -> str:
    """The lines that tell a reader of this process's stacks which frames are not the user's."""
    installed = {
        *(path for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
    pyspark = find_spec("pyspark")  # Spark may have put an archive on the path
    if pyspark is not None and pyspark.origin is not None:
        installed.add(os.path.dirname(os.path.abspath(pyspark.origin)))
    lines = [OURS + PACKAGE]
    lines += [INSTALLED + folder for folder in sorted(installed)]
    # The fault handler writes file names in ASCII, too.
    return "\n".join(lines).encode("ascii", "backslashreplace").decode()


def at_work(text: str) -> str | None:
    """The user's code that a worker was executing, from the newest stacks in `text`."""
    lines = text.splitlines()
    ours = _folders(lines, OURS)
    not_theirs = (*ours, *_folders(lines, INSTALLED), "<frozen ")
    runner = {folder + "runtime/runner.py" for folder in ours}
    stacks = text.rpartition("Fatal Python error")[2]
    for stack in reversed(stacks.split("\n\n")):
        frames = _FRAME.findall(stack)  # innermost first
        if any(file in runner for _, file in frames):
            theirs = (text for text, file in frames if not file.startswith(not_theirs))
            return next(theirs, str(frames[0][0]))
    return None


def _folders(lines: list[str], mark: str) -> tuple[str, ...]:
    return tuple(line.removeprefix(mark) + "/" for line in lines if line.startswith(mark))
