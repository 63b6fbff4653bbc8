"""The runs of one process share its Spark and its machine: each has its slots until it ends.

Spark would let a second run wait silently for slots that the first keeps to its end, and a run on
another master would stop the Spark of the others. Both are refused instead, with the fix.
"""

import threading
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


class Shares:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shares: list[Share] = []

    @contextmanager
    def taking(
        self, graph: Graph, find: Callable[[tuple[Share, ...]], SlotGrant]
    ) -> Iterator[SlotGrant]:
        """Slots for this run, reserved until it ends; `find` gets the other runs' shares of Spark.

        One run at a time, so that two runs that start together do not claim the same slots.
        """
        with self._lock:
            others = tuple(self._shares)
            if any(share.graph is graph for share in others):
                raise UserError(
                    f"'{graph.name}' is already running in this process: wait for that run, or "
                    "build the pipeline again, with separate sinks."
                )
            grant = find(tuple(share for share in others if share.slots))
            share = Share(graph.name, grant.slots, graph)
            self._shares.append(share)
        try:
            yield grant
        finally:
            with self._lock:
                # By identity: two runs may compare equal.
                self._shares = [one for one in self._shares if one is not share]


SHARES = Shares()
"""The shares of this process."""


def refuse_other_master(running: str, wanted: str, others: tuple[Share, ...]) -> None:
    """A process has one Spark: while others run on it, it is not stopped for another master."""
    if others:
        raise UserError(
            f"{named(others)} running in this process on master '{running}', and a process has one "
            f"Spark: start this run on the same master, or wait for them before using '{wanted}'."
        )


def no_slots_left(there_are: int, others: tuple[Share, ...]) -> UserError:
    used = ", ".join(sorted(f"'{one.pipeline}' {one.slots}" for one in others))
    return UserError(
        f"Spark has {there_are} slot(s), and other runs of this process use them all ({used}). "
        "Start those with workers=..., so that some are left, or use a master with more, such as "
        f"master='local[{there_are + 1}]'."
    )


def named(others: tuple[Share, ...]) -> str:
    names = ", ".join(sorted(f"'{one.pipeline}'" for one in others))
    return f"{names} {'is' if len(others) == 1 else 'are'}"
