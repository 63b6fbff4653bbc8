"""How transactions are walked: in order, and along the graph.

This file is both a template and a module. For each set of transactions, `codegen` writes a copy of
it in which `step` is the real one and everything is compiled; here it is only the interface the walks
are written against. A recovery scheme adds further steps and walks (`KernelParts`). Threads meet in
`control`, whose counters are on separate cache lines, and account for their time in `totals`, in
cycles, one row per thread.
"""

from abc import ABC, abstractmethod
from typing import Any

from everstream.transactions.compiled import cycles, fetch_add, give_way, load, store

EXECUTE = 0
ABORT_TIME = 1
EXPLORE = 2
WAIT = 3
TOTALS = 4

HEAD = 0
TAIL = 8
STOP = 16
CONTROL = 24

_PATIENCE = 256


class Steps(ABC):
    """What the walks do with one transaction; generated for each set of them."""

    @staticmethod
    @abstractmethod
    def step(i: int, data: Any) -> bool:
        """Run transaction i: read, decide, write, record the outcome; True if it committed."""


step = Steps.step


def spin_on(tries: int) -> int:
    """Check again whether another thread has finished; now and then let others run."""
    if tries % _PATIENCE == _PATIENCE - 1:
        give_way()
    return tries + 1


def account(totals: Any, thread: int, execute: int, aborted: int, explore: int, wait: int) -> None:
    totals[thread, EXECUTE] += execute
    totals[thread, ABORT_TIME] += aborted
    totals[thread, EXPLORE] += explore
    totals[thread, WAIT] += wait


def run_in_order(start: int, stop: int, data: Any, totals: Any) -> None:
    began = cycles()
    aborted = 0
    for i in range(start, stop):
        before = cycles()
        if not step(i, data):
            aborted += cycles() - before
    account(totals, 0, cycles() - began - aborted, aborted, 0, 0)


def run_ready(
    thread: int,
    total: int,
    pending: Any,
    successor_start: Any,
    successors: Any,
    queue: Any,
    control: Any,
    data: Any,
    executed_by: Any,
    totals: Any,
) -> None:
    """Take transactions from `queue` as they become ready.

    Each transaction enters the queue once and each place is claimed once, so a thread
    that claims a place still empty just waits for it to be filled.
    """
    execute = 0
    aborted = 0
    explore = 0
    wait = 0
    mark = cycles()
    while True:
        place = fetch_add(control, HEAD, 1)
        if place >= total:
            break
        i = load(queue, place)
        now = cycles()
        explore += now - mark
        mark = now
        tries = 0
        while i < 0:
            if load(control, STOP) != 0:
                return
            tries = spin_on(tries)
            i = load(queue, place)
        now = cycles()
        wait += now - mark
        mark = now
        committed = step(i, data)
        executed_by[i] = thread
        now = cycles()
        if committed:
            execute += now - mark
        else:
            aborted += now - mark
        mark = now
        for edge in range(successor_start[i], successor_start[i + 1]):
            successor = successors[edge]
            if fetch_add(pending, successor, -1) == 1:
                store(queue, fetch_add(control, TAIL, 1), successor)
    account(totals, thread, execute, aborted, explore, wait)
