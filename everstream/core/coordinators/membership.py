"""Which processes have joined, and which worker each of them is.

A worker is a place in the plan: the shards that run together. A process is a task of the job, known
by its number. There may be more processes than workers: the others are spares. When a worker is
lost, a spare replaces it at once, and the next process to join becomes a spare.
"""

from collections.abc import Collection, Iterator
from typing import Any

from everstream.core.ids import ShardId, TaskNumber, WorkerId
from everstream.core.plan import Plan


class Membership:
    """The workers of the plan whose process has joined and was not lost since, and the spares."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._addresses: dict[WorkerId, Any] = {}
        self._places: dict[TaskNumber, WorkerId] = {}
        self._spares: dict[TaskNumber, Any] = {}
        """The spares with their addresses, in the order in which they joined."""

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._addresses

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def complete(self) -> bool:
        return len(self._addresses) == len(self._plan.workers)

    @property
    def addresses(self) -> dict[WorkerId, Any]:
        return dict(self._addresses)

    @property
    def spares(self) -> tuple[TaskNumber, ...]:
        return tuple(self._spares)

    def join(self, process: TaskNumber, address: Any) -> WorkerId | None:
        """The worker that this process becomes; None if all are taken, and it is a spare.

        A process prefers the worker with its own number: without spares the two are always the
        same.
        """
        places = map(WorkerId, range(len(self._plan.workers)))
        free = [worker for worker in places if worker not in self._addresses]
        if not free:
            self._spares[process] = address
            return None
        own = WorkerId(process)
        worker = own if own in free else free[0]
        self._take(process, worker, address)
        return worker

    def leave(self, process: TaskNumber) -> WorkerId | None:
        """This process is gone. Returns the worker that is missing now."""
        self._spares.pop(process, None)
        worker = self._places.pop(process, None)
        if worker is not None:
            del self._addresses[worker]
        return worker

    def fill(self, worker: WorkerId) -> TaskNumber | None:
        """The spare that replaces this missing worker; None if there is no spare."""
        process = next(iter(self._spares), None)
        if process is not None:
            self._take(process, worker, self._spares.pop(process))
        return process

    def of(self, shards: Collection[ShardId]) -> list[WorkerId]:
        """The workers that run any of these shards."""
        wanted = set(shards)
        return [worker for worker in self if not wanted.isdisjoint(self._plan.workers[worker])]

    def _take(self, process: TaskNumber, worker: WorkerId, address: Any) -> None:
        self._places[process] = worker
        self._addresses[worker] = address
