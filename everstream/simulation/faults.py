"""Which faults hit a simulated run: how many of each kind, and when, from the seed.

Half of the kills come at any time. The others wait for the moments at which races are decided: when
a manifest is about to be written, when an epoch has just become stable, when one has in which some
shards had ended and others had not, and when one was given up because it was unknown whether its
manifest would ever land. The driver is also killed when a put that timed out arrives after all.

`Faults()` are the faults of processes, network and store. A `STORM` has every kind, at once.

Operators, sinks and the libraries of stores raise all kinds of errors, some of which cannot be
pickled, printed, or even named. Whatever it is, a run must continue or end with a reason; so the
simulator raises one of each (`raise_one`).
"""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NoReturn, TypeAlias

from everstream.errors import ConnectorError

Moment: TypeAlias = Literal["writing", "stable", "ending", "given up", "late"]
EPOCHS_WATCHED: dict[Moment, int] = {
    "writing": 6,
    "stable": 6,
    "ending": 2,
    "given up": 2,
    "late": 2,
}


@dataclass(frozen=True)
class Faults:
    """How many faults of each kind at most. Times in virtual seconds; the seed decides the rest."""

    worker_kills: int = 3
    ambushes: int = 2
    zombies: int = 1
    driver_kills: int = 1
    full_disks: int = 1
    lost_answers: int = 1
    rotten_objects: int = 2
    delayed_manifests: int = 2
    """Puts of entries of the log, leases and void ones too, that time out and land later."""
    delayed_objects: int = 1
    slow_uploads: int = 1
    """Checkpoints that take longer to save than a checkpoint may take."""
    odd_errors: int = 3
    """Operations of the store that raise an error, of any kind."""
    both_copies: float = 0.7
    """How often an object rots together with its copy."""
    power_cuts: int = 0
    """Everything dies at once, and what was not synced may be undone."""
    clock_jumps: int = 0
    """The clock of one machine, or of all, is set, back or forth."""
    operator_errors: int = 0
    sink_errors: int = 0
    rescales: int = 0
    """Operators get other numbers of shards during the run."""
    rotten_outputs: int = 0
    """Prepared output that is damaged, or vanishes, while it waits."""
    lost_slots: int = 0
    """Workers that die with their slot: it comes back late, or never."""
    takeovers: int = 0
    """A standby takes over while the driver that it replaces lives for a while longer."""
    until_s: float = 0.5
    """Later only kills at such moments happen: from then on the run must make progress."""

    def timed(self, chance: random.Random) -> Iterator[tuple[float, str]]:
        """When to do what: the names of methods of `World`."""
        for count, fault in (
            (self.worker_kills, "kill_worker"),
            (self.zombies, "lose_worker"),
            (self.driver_kills, "kill_driver"),
            (self.full_disks, "fill_disk"),
            (self.lost_answers, "lose_answer"),
            (self.rotten_objects, "rot_object"),
            (self.delayed_manifests, "delay_manifest"),
            (self.delayed_objects, "delay_object"),
            (self.slow_uploads, "slow_upload"),
            (self.odd_errors, "fail_oddly"),
            (self.power_cuts, "cut_power"),
            (self.clock_jumps, "jump_clock"),
            (self.operator_errors, "fail_operator"),
            (self.sink_errors, "fail_sink"),
            (self.rescales, "rescale"),
            (self.rotten_outputs, "rot_output"),
            (self.takeovers, "take_over"),
            (self.lost_slots, "lose_slot"),
        ):
            for _ in range(chance.randint(0, count) if count else 0):
                yield chance.uniform(0, self.until_s), fault

    def lying_in_ambush(self, chance: random.Random) -> Iterator[tuple[Moment, int]]:
        """At which moment of which epoch of the run (counted from 1) a process is killed."""
        for _ in range(chance.randint(0, self.ambushes)):
            moment = chance.choice(tuple(EPOCHS_WATCHED))
            yield moment, chance.randint(1, EPOCHS_WATCHED[moment])


NO_FAULTS = Faults(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

STORM = Faults(
    rotten_objects=3,
    both_copies=0.1,
    power_cuts=2,
    clock_jumps=3,
    operator_errors=2,
    sink_errors=2,
    rotten_outputs=1,
    until_s=0.8,
)
"""Every kind of fault, several times."""


class OddError(Exception):
    """As in the libraries of object stores: neither an OSError nor one of ours."""


class ResponseError(Exception):
    """Takes two arguments and keeps one, so it pickles, but cannot be unpickled."""

    def __init__(self, response: dict[str, str], operation: str) -> None:
        super().__init__(f"an error occurred ({response['Code']}) when calling {operation}")


class HoldsLock(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Mute(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("even this fails")

    __repr__ = __str__


class MuteOSError(OSError):
    """An expected kind of error that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("even this fails")

    __repr__ = __str__


class TheirConnectorError(ConnectorError):
    """One of ours, with an added attribute that cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


Make: TypeAlias = Callable[[str], BaseException]

STORES: Final[dict[str, Make]] = {
    "an odd error": OddError,
    "an OSError": lambda what: OSError(5, "Input/output error", what),
    "an empty OSError": lambda what: OSError(),
    "a mute OSError": MuteOSError,
    "a ValueError": ValueError,
    "a RuntimeError": RuntimeError,
    "a KeyError": KeyError,
    "a MemoryError": MemoryError,
    "a StopIteration": StopIteration,
    "an ExceptionGroup": lambda what: ExceptionGroup(what, [ValueError(what), OddError(what)]),
    "a response": lambda what: ResponseError({"Code": "SlowDown"}, what),
    "one that cannot be pickled": HoldsLock,
    "one that cannot be shown": Mute,
    "one that cannot be encoded": lambda what: ValueError(f"{what} \udc80"),
    "a cancellation": asyncio.CancelledError,
}
"""The errors that an operation of a store may raise."""

OPERATORS: Final[dict[str, Make]] = {
    **STORES,
    "a KeyboardInterrupt": KeyboardInterrupt,
    "a SystemExit": SystemExit,
    "a GeneratorExit": GeneratorExit,
    "one of ours with a lock": TheirConnectorError,
}
"""The errors that user code and the libraries that it calls may raise."""


def raise_one(kinds: dict[str, Make], what: str, chance: random.Random) -> NoReturn:
    """Raise one of these; `what` went wrong."""
    raise kinds[chance.choice(list(kinds))](what)
