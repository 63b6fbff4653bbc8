"""The messages between a driver and its fork server, over a pair of sockets that only they have."""

from dataclasses import dataclass, field

from everstream.core.ids import TaskNumber

COMPLETED = "completed"
"""What a worker says that has left because the run is over."""


@dataclass(frozen=True)
class Preload:
    """Import these modules of Everstream, so that no worker has to."""

    modules: tuple[str, ...]


@dataclass(frozen=True)
class RunBegins:
    """What all workers of a run get; the files for their output follow the message."""

    run: str
    pickled_task: bytes = field(repr=False)
    folder: str
    environment: dict[str, str] = field(repr=False)
    python_path: list[str]


@dataclass(frozen=True)
class RunEnds:
    """No worker of this run will be forked any more."""

    run: str


@dataclass(frozen=True)
class Fork:
    """Start a worker."""

    run: str
    number: TaskNumber
    attempt: int
    task: int


@dataclass(frozen=True)
class KillTask:
    task: int


@dataclass(frozen=True)
class Ended:
    """A worker has ended."""

    run: str
    task: int
    code: int
    """Its exit code; the negative number of the signal that killed it."""
    last_words: str


ToServer = Preload | RunBegins | RunEnds | Fork | KillTask
FromServer = Ended
