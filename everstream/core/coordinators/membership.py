"""Which processes are here, and who has which place.

A worker is a place in the plan: the shards that run together. A process is a task of the job, known by
its number. There may be more processes than places: those left over stand by as spares, and when a
place is lost one of them takes it at once. Whoever comes then, stands by in its stead.
"""

from collections.abc import Collection, Iterator
from typing import Any

from everstream.core.ids import ShardId, TaskNumber, WorkerId
from everstream.core.plan import Plan


class Membership:
    """The workers of the plan whose process has said hello and was not lost since, and the spares."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._addresses: dict[WorkerId, Any] = {}
        self._places: dict[TaskNumber, WorkerId] = {}
        self._spares: dict[TaskNumber, Any] = {}
        """Those who stand by, in the order in which they came, and where they are reached."""

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._addresses

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def complete(self) -> bool:
        """Everybody is here."""
        return len(self._addresses) == len(self._plan.workers)

    @property
    def addresses(self) -> dict[WorkerId, Any]:
        return dict(self._addresses)

    @property
    def spares(self) -> tuple[TaskNumber, ...]:
        """Those who stand by."""
        return tuple(self._spares)

    def join(self, process: TaskNumber, address: Any) -> WorkerId | None:
        """The place that this process takes; None if there is none for it, and it stands by.

        It prefers the one with its own number: without spares the two are always the same.
        """
        free = list(self._free())
        if not free:
            self._spares[process] = address
            return None
        own = WorkerId(process)
        worker = own if own in free else free[0]
        self._take(process, worker, address)
        return worker

    def leave(self, process: TaskNumber) -> WorkerId | None:
        """This process is gone; the place that is empty now."""
        self._spares.pop(process, None)
        worker = self._places.pop(process, None)
        if worker is not None:
            del self._addresses[worker]
        return worker

    def fill(self, worker: WorkerId) -> TaskNumber | None:
        """The spare that takes this place, which is empty; None if nobody stands by."""
        process = next(iter(self._spares), None)
        if process is not None:
            self._take(process, worker, self._spares.pop(process))
        return process

    def of(self, shards: Collection[ShardId]) -> list[WorkerId]:
        """Those who run any of these shards."""
        wanted = set(shards)
        return [worker for worker in self if not wanted.isdisjoint(self._plan.workers[worker])]

    def _take(self, process: TaskNumber, worker: WorkerId, address: Any) -> None:
        self._places[process] = worker
        self._addresses[worker] = address

    def _free(self) -> Iterator[WorkerId]:
        places = (WorkerId(number) for number in range(len(self._plan.workers)))
        return (worker for worker in places if worker not in self._addresses)
