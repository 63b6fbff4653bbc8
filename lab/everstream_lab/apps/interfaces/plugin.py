"""A programming interface as a class: what another library has to say to be compared with the rest.

Subclass `Farm` and say how a function is applied to tasks by some workers; everything else (inputs,
batches, loads, times per item, results, checks) is the same for all. A subclass of `Interface` does
all of it itself. Name the class in the entry points `everstream_lab.interfaces` of your package:

    [project.entry-points."everstream_lab.interfaces"]
    mine = "my_package:Mine"
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from everstream_lab.apps.interfaces.arrivals import gather
from everstream_lab.apps.interfaces.job import Done, Job, farmed, preloaded
from everstream_lab.apps.interfaces.tasks import tasks
from everstream_lab.apps.interfaces.work import Chunk, Task, Work
from everstream_lab.apps.lookup import application_at


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

    @classmethod
    def of(cls, job: Job) -> "Opened":
        return cls(job.reference, job.folder, job.in_memory, job.clocked)

    def __call__(self, task: Task) -> Chunk:
        if self not in _opened:
            application = farmed(application_at(self.reference))
            items = preloaded(application.items(self.folder), self.in_memory)
            _opened[self] = Work(items, application.stages, self.clocked)
        return _opened[self](task)


_opened: dict[Opened, Work] = {}
"""In this process."""


class Farm(Interface):
    """An interface that applies one function to many tasks."""

    def start(self, job: Job, work: Callable[[Task], Chunk]) -> None:
        """Start the workers; the clock begins when this returns."""

    @abstractmethod
    def apply(
        self, job: Job, work: Callable[[Task], Chunk], given: Iterator[Task]
    ) -> Iterable[Chunk]:
        """The results of all tasks, in their order if `job.application.ordered`.

        Take a task only when a worker will soon be free for it: under a load, taking waits until
        the task is due.
        """

    def close(self) -> None:
        """End the workers; called however the run ended."""

    def run(self, job: Job) -> Done:
        job = replace(job, application=farmed(job.application))
        items = len(job.application.items(job.folder))
        work = Opened.of(job)
        try:
            self.start(job, work)
            return gather(job, items, self.apply(job, work, tasks(job, items)))
        finally:
            self.close()
