"""A programming interface as a class: what another library has to say to be compared with the rest.

Subclass `Farm` and say how a function is applied to tasks by some workers; everything else (inputs,
batches, loads, times per item, results, checks) is the same for all. A subclass of `Interface` does
all of it itself. Name the class in the entry points `everstream_lab.interfaces` of your package:

    [project.entry-points."everstream_lab.interfaces"]
    mine = "my_package:Mine"
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from everstream_lab.apps.interfaces.arrivals import gather
from everstream_lab.apps.interfaces.clutter import cluttered
from everstream_lab.apps.interfaces.job import Done, Job, farmed, preloaded
from everstream_lab.apps.interfaces.shape import degrees_of
from everstream_lab.apps.interfaces.tasks import tasks
from everstream_lab.apps.interfaces.work import Chunk, StageWork, Task, Work
from everstream_lab.apps.lookup import application_at

Given = Task | Chunk
"""What a worker gets: positions of items, or what an earlier stage made of them."""


class Interface(ABC):
    """A way of running applications; one object per run."""

    survives_kills: ClassVar[bool] = False
    """Whether it takes checkpoints, so that a run may be killed."""

    @abstractmethod
    def run(self, job: Job) -> Done:
        """Run the job and write its result file. The clock begins when workers stand ready."""


@dataclass(frozen=True)
class Opened:
    """The stages of an application as one function, which any process can be given.

    Only names travel: each process opens the input itself, when it gets its first task.
    """

    reference: str
    folder: Path
    in_memory: bool
    clocked: bool
    clutter: int = 0
    farm: int | None = None
    """Which stage of a pipeline of farms; None: all stages."""

    @classmethod
    def of(cls, job: Job, farm: int | None = None) -> "Opened":
        return cls(job.reference, job.folder, job.in_memory, job.clocked, job.clutter, farm)

    def __call__(self, given: Given) -> Chunk:
        if self not in _opened:
            _opened[self] = self.open()
        return _opened[self](given)

    def open(self) -> Callable[[Any], Chunk]:
        """The function, with the input opened."""
        plain = cluttered(application_at(self.reference), self.clutter)
        application = farmed(plain)
        if self.farm is None:
            items = preloaded(application.items(self.folder), self.in_memory)
            return Work(items, application.stages, self.clocked)
        items = []
        if self.farm == 0:  # the others get what it has read
            items = preloaded(application.items(self.folder), self.in_memory)
        own = stages_of_farm(len(plain.stages), len(application.stages), self.farm)
        return StageWork(items, application.stages, own, self.clocked)


def stages_of_farm(stages: int, all_stages: int, farm: int) -> range:
    """The stages of one farm: its own, and for the last also encoding, where workers do that.

    >>> stages_of_farm(3, 4, 0), stages_of_farm(3, 4, 2)
    (range(0, 1), range(2, 4))
    """
    return range(farm, all_stages if farm == stages - 1 else farm + 1)


_opened: dict[Opened, Callable[[Any], Chunk]] = {}
"""In this process."""


class Farm(Interface):
    """An interface that applies one function to many tasks.

    In a pipeline of farms there is one object per stage, with `job.workers` workers each, and what
    one gives is what the next is given.
    """

    def start(self, job: Job, work: Callable[[Given], Chunk]) -> None:
        """Start the workers; the clock begins when this returns."""

    @abstractmethod
    def apply(
        self, job: Job, work: Callable[[Given], Chunk], given: Iterator[Given]
    ) -> Iterable[Chunk]:
        """The results of all tasks, in their order if `job.application.ordered`.

        Take a task only when a worker will soon be free for it: under a load, taking waits until
        the task is due.
        """

    def close(self) -> None:
        """End the workers; called however the run ended."""

    def run(self, job: Job) -> Done:
        degrees = degrees_of(job.application, job.stages, job.workers)
        job = replace(job, application=farmed(cluttered(job.application, job.clutter)))
        items = len(job.application.items(job.folder))
        farms: list[Farm] = [self, *(type(self)() for _ in degrees[1:])]
        jobs = [replace(job, workers=degree) for degree in degrees] or [job]
        works = [Opened.of(job, number) for number in range(len(degrees))] or [Opened.of(job)]
        with ExitStack() as running:
            for farm, own, work in zip(farms, jobs, works, strict=True):
                running.callback(farm.close)
                farm.start(own, work)
            given: Iterable[Given] = tasks(job, items)
            for farm, own, work in zip(farms, jobs, works, strict=True):
                given = farm.apply(own, work, iter(given))
            return gather(job, items, cast("Iterable[Chunk]", given))
