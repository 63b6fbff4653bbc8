"""Life signs of a host: it tells the driver that it lives, and leaves a trace of what it is at.

A thread of its own beats whatever the host is busy with, unless that holds Python's interpreter
lock: then nothing is heard of the process although it lives. Python's fault handler needs no lock.
It writes the stack of every thread to a file when the driver sends a signal, and when the process
dies of one; the driver, on the same machine, reads it there.
"""

import faulthandler
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import zmq

from everstream.core.ids import HostId
from everstream.spark.endpoints import Address, Doors
from everstream.spark.talk import Beat

BEAT_EVERY_S = 0.25
STACKS = "stacks"
ASK = signal.SIGUSR1
NOT_THEIRS = ("/everstream/", "/lib/python")
"""Parts of the names of files that no user wrote: ours, Python's and installed packages'."""


class LifeSign:
    """Tells the driver that this process lives; ends it if driver or parent are gone."""

    def __init__(
        self, doors: Doors, driver: Address, timeout_s: float, id: HostId, attempt: int
    ) -> None:
        self.heard_s = time.monotonic()
        self._parent = os.getppid()
        self._timeout_s = timeout_s
        self._stop = threading.Event()
        self._stacks = open(os.path.join(doors.folder, STACKS), "w")  # noqa: SIM115
        faulthandler.enable(self._stacks)
        faulthandler.register(ASK, self._stacks)
        beating = doors.connect(zmq.DEALER, driver, f"beat-{id}/{attempt}".encode())
        beat = pickle.dumps(Beat(id, attempt))
        self._thread = threading.Thread(
            target=self._loop, args=(beating, beat), name="everstream-life", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        faulthandler.unregister(ASK)
        signal.signal(ASK, signal.SIG_IGN)
        faulthandler.disable()
        self._stacks.close()

    def _loop(self, beating: "zmq.Socket[bytes]", beat: bytes) -> None:
        try:
            self._beat_until_stopped(beating, beat)
        except BaseException:  # a host that cannot say that it lives is taken for dead: be it
            traceback.print_exc()
            os._exit(1)

    def _beat_until_stopped(self, beating: "zmq.Socket[bytes]", beat: bytes) -> None:
        beaten_s = time.monotonic()
        while not self._stop.wait(BEAT_EVERY_S):
            beating.send(beat)
            while beating.poll(0):
                beating.recv()
                self.heard_s = time.monotonic()
            # While this thread could not run, it could not have heard anything either.
            now_s = time.monotonic()
            self.heard_s += max(0.0, now_s - beaten_s - 2 * BEAT_EVERY_S)
            beaten_s = now_s
            if os.getppid() != self._parent or self._silent():
                os._exit(1)
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


def read_stacks(address: Address) -> str:
    """What the host that listens at this address, on this machine, has left of its stacks."""
    file = Path(address.ipc.removeprefix("ipc://")).parent / STACKS
    try:
        return file.read_text(errors="replace")
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


def how_it_died(address: Address) -> str:
    """What is known of the end of a host's process: more than that, if it died of a fault."""
    text = read_stacks(address)
    _, fatal, rest = text.rpartition("Fatal Python error: ")
    if not fatal:
        return "its process ended"
    where = at_work(text)
    return f"its process ended: {rest.partition(chr(10))[0]}" + (f", in {where}" if where else "")


def _frames(stack: str) -> Iterator[str]:
    """`File "x.py", line 3 in f`, the innermost first."""
    for line in stack.splitlines():
        if line.lstrip().startswith("File "):
            yield line.strip()
