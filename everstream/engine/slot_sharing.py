"""The runs of one process share its Spark and its machine: each has its slots until it ends.

Spark would let a second run wait silently, and perhaps for ever, for slots that the first keeps to its end.
Here it waits in a line and says for what. Who came first gets free slots first, even if they would be enough
for a later one, so a run that needs many is not passed over. The wait ends with an error after a while. A run
on another master would stop the Spark of the others: it is refused.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from everstream.errors import InternalError, UserError
from everstream.pipeline.graph import Graph

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass(frozen=True)
class Share:
    pipeline: str
    slots: int
    graph: Graph


@dataclass(frozen=True)
class SlotGrant:
    """Where a run executes: how many workers it may have, and on which Spark, if on one."""

    workers: int
    slots: int = 0
    """Slots of Spark that it keeps to its end."""
    context: "SparkContext | None" = None

    @property
    def spark(self) -> "SparkContext":
        if self.context is None:
            raise InternalError("this engine has reserved no Spark")
        return self.context

    @property
    def spark_page(self) -> str | None:
        return None if self.context is None else self.context.uiWebUrl


class NoSlotsLeft(UserError):
    """Other runs of this process use the slots that a run needs; they become free when those end."""


@dataclass
class WaitingRun:
    """How a run waits for slots."""

    timeout_s: float = 0.0
    """After this long, it fails."""
    in_line: bool = True
    """Whether it needs slots, and so waits for those that came first."""
    given_up: Callable[[], bool] = lambda: False
    """Whether the run was stopped meanwhile."""
    on_wait: Callable[[str], None] = lambda what: None
    """Called with what it waits for, whenever that changes."""
    on_end: Callable[[float], None] = lambda waited_s: None
    """Called with how long it has waited, if it had to."""
    now_s: Callable[[], float] = time.monotonic


class Shares:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shares: list[Share] = []
        self._line: list[Graph] = []
        """The pipelines that wait for slots, in the order in which they came."""

    @contextmanager
    def taking(
        self,
        graph: Graph,
        find: Callable[[tuple[Share, ...]], SlotGrant],
        waiting: WaitingRun | None = None,
    ) -> Iterator[SlotGrant | None]:
        """Slots for this run, reserved until it ends; `find` gets the other runs' shares of Spark.

        One run at a time, so that two runs that start together do not claim the same slots. None if
        the run was stopped while it waited.
        """
        with self._changed:
            if any(one is graph for one in (*self._line, *(s.graph for s in self._shares))):
                raise UserError(
                    f"'{graph.name}' is already running in this process: wait for that run, or "
                    "build the pipeline again, with separate sinks."
                )
            self._line.append(graph)
            try:
                grant = self._found(graph, find, waiting or WaitingRun())
            finally:
                self._line = [one for one in self._line if one is not graph]
                self._changed.notify_all()
            if grant is not None:
                share = Share(graph.name, grant.slots, graph)
                self._shares.append(share)
        if grant is None:
            yield None
            return
        try:
            yield grant
        finally:
            with self._changed:
                # By identity: two runs may compare equal.
                self._shares = [one for one in self._shares if one is not share]
                self._changed.notify_all()

    def _found(
        self, graph: Graph, find: Callable[[tuple[Share, ...]], SlotGrant], waiting: WaitingRun
    ) -> SlotGrant | None:
        began_s, told = waiting.now_s(), ""
        tried: tuple[Share, ...] | None = None
        problem: NoSlotsLeft
        while not waiting.given_up():
            first = self._line[0]
            if first is not graph and waiting.in_line:
                problem = NoSlotsLeft(
                    f"'{first.name}' waits for slots of Spark, too, and came first. Wait for it, or use a "
                    "master with more slots."
                )
            elif (shares := tuple(self._shares)) != tried:  # otherwise nothing has changed
                tried = shares
                try:
                    grant = find(tuple(share for share in shares if share.slots))
                    if told:
                        waiting.on_end(waiting.now_s() - began_s)
                    return grant
                except NoSlotsLeft as error:
                    problem = error
            waited_s = waiting.now_s() - began_s
            if waited_s >= waiting.timeout_s:
                raise NoSlotsLeft(
                    f"{problem.message} This run has waited for {waited_s:.0f} s; start_timeout "
                    f"(--start-timeout) is {waiting.timeout_s:g} s."
                ) from problem
            if problem.message != told:
                told = problem.message
                waiting.on_wait(told)
            self._changed.wait(min(_LOOK_S, waiting.timeout_s - waited_s))
        return None


_LOOK_S = 0.2
"""How often a run that waits looks whether it was stopped."""
SHARES = Shares()
"""The shares of this process."""


def refuse_other_master(running: str, wanted: str, others: tuple[Share, ...]) -> None:
    """A process has one Spark: while others run on it, it is not stopped for another master."""
    if others:
        raise UserError(
            f"{named(others)} running in this process on master '{running}', and a process has one "
            f"Spark: start this run on the same master, or wait for them before using '{wanted}'."
        )


def no_slots_left(there_are: int, others: tuple[Share, ...]) -> NoSlotsLeft:
    used = ", ".join(sorted(f"'{one.pipeline}' {one.slots}" for one in others))
    return NoSlotsLeft(
        f"Spark has {there_are} slot(s), and other runs of this process use them all ({used}). "
        "Start those with workers=..., so that some are left, or use a master with more, such as "
        f"master='local[{there_are + 1}]'."
    )


def named(others: tuple[Share, ...]) -> str:
    names = ", ".join(sorted(f"'{one.pipeline}'" for one in others))
    return f"{names} {'is' if len(others) == 1 else 'are'}"
