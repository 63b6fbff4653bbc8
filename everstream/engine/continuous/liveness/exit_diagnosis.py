"""How a worker's process ended, as far as the driver can find out on the same machine.

The driver is not its parent, so the kernel does not report its end. The evidence is: what Python's
fault handler wrote when the process crashed, what Everstream wrote when code called `os._exit`, the
last operator, and, since Linux 6.15, the exit status through the process handle.
"""

import fcntl
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from everstream.core.ids import ShardId
from everstream.core.plan import Plan
from everstream.engine.continuous.liveness.crash_breadcrumb import last_at_work
from everstream.engine.continuous.liveness.life_sign import EXIT, at_work, folder_of, read_stacks
from everstream.engine.continuous.transport.endpoints import Address
from everstream.engine.continuous.worker.memory import (
    KernelWords,
    MemoryKills,
    Starved,
    in_words,
    memory_bytes,
)

GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
"""PIDFD_GET_INFO with the first version of its structure, 64 bytes."""
WITH_EXIT = 1 << 3
REAPED_WITHIN_S = 0.05
"""A handle becomes readable a moment before the kernel has stored the exit status."""


@dataclass(frozen=True)
class ExitDiagnosis:
    stacks: str = ""
    operator: str | None = None
    """The operator that was active last."""
    status: int | None = None
    """As waitpid gives it."""
    peak_bytes: int = 0
    """The highest memory use known."""
    memory_kills: int | None = None
    """How many processes the kernel has killed for lack of memory during this run."""
    memory_bytes: int | None = None
    """The total memory."""
    starved: Starved | None = None
    """The kernel's record that it killed this process for lack of memory."""

    def __str__(self) -> str:
        _, fatal, rest = self.stacks.rpartition("Fatal Python error: ")
        if fatal:
            return f"its process ended: {_first_line(rest)}" + self._where()
        _, left, rest = self.stacks.rpartition(EXIT)
        if left:
            return f"its process ended: os._exit({_first_line(rest)})" + self._where()
        status = signal.SIGKILL if self.starved is not None else self.status
        if status is None:
            return "its process ended" + self._last()
        number = status & 0x7F
        if not number:
            return f"its process ended with exit code {status >> 8}" + self._last()
        name = signal.Signals(number).name
        why = self._memory() if number == signal.SIGKILL else ""
        return f"its process was killed by {name}{why}" + self._last()

    def _where(self) -> str:
        line = at_work(self.stacks)
        return "".join(f", in {where}" for where in (self.operator, line) if where)

    def _last(self) -> str:
        return f"; its last operator was {self.operator}" if self.operator else ""

    def _memory(self) -> str:
        if self.starved is not None:
            limit = "its control group" if self.starved.in_group else "the machine"
            taken = in_words(max(self.starved.taken_bytes, self.peak_bytes))
            return (
                f", by the kernel for lack of memory: it had used {taken}, and {limit} has no more"
            )
        if self.memory_kills == 0:
            return ", and not by the kernel for lack of memory"
        sizes = []
        if self.peak_bytes:
            sizes.append(f"it had used {in_words(self.peak_bytes)}")
        if self.memory_bytes:
            sizes.append(f"{in_words(self.memory_bytes)} in total")
        return ", probably out of memory" + (f" ({', '.join(sizes)})" if sizes else "")


class ExitExaminer:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kills = MemoryKills()
        self._kernel = KernelWords()

    def examine(
        self, address: Address, shards: Sequence[ShardId], pid: int, pidfd: int, peak_bytes: int
    ) -> ExitDiagnosis:
        status, kills = exit_status(pidfd), self._kills.since()
        return ExitDiagnosis(
            read_stacks(address),
            last_at_work(folder_of(address), self._plan, shards),
            status,
            peak_bytes,
            kills,
            memory_bytes(),
            self._kernel.of(pid) if status in (None, signal.SIGKILL) and kills != 0 else None,
        )


def exit_status(pidfd: int) -> int | None:
    """The status of an ended process, as from waitpid; None if the kernel does not provide it."""
    give_up_s = time.monotonic() + REAPED_WITHIN_S
    while True:
        info = bytearray(64)
        struct.pack_into("Q", info, 0, WITH_EXIT)
        try:
            fcntl.ioctl(pidfd, GET_INFO, info)
        except OSError:
            info[:8] = bytes(8)
        (told,) = struct.unpack_from("Q", info, 0)
        if told & WITH_EXIT:
            (status,) = struct.unpack_from("i", info, 60)
            return int(status)
        if time.monotonic() > give_up_s:
            return None
        time.sleep(0.001)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
