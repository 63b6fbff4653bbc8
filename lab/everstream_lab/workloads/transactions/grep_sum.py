"""Grep and Sum: each event reads a list of keys and writes their sum back to the first.

Sums of sums outgrow any number type, so they are kept below `MODULUS`.
"""

import linecache
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from everstream.transactions.definition import ABORT, Transaction, transaction
from everstream.transactions.tables import Table
from everstream_lab.workloads.transactions.shape import Shape, Workload, choose, draw_key_sets

MODULUS = 2_147_483_647

states = Table("states", value="int64", initial=1)


@lru_cache(maxsize=8)
def sum_transaction(length: int) -> Transaction:
    """The transaction over `length` keys, written out so that it compiles to straight code."""
    names = [f"key{position}" for position in range(length)]
    source = (
        f"def total({', '.join(names)}, rejected):\n"
        f"    if rejected:\n"
        f"        return ABORT\n"
        f"    return ({' + '.join(names)}) % MODULUS\n"
    )
    filename = f"<grep and sum over {length} keys>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = {"ABORT": ABORT, "MODULUS": MODULUS, "__name__": __name__}
    exec(compile(source, filename, "exec"), namespace)
    keys: dict[str, Any] = {name: states.key(name) for name in names}
    return transaction(writes=names[0], **keys)(namespace["total"])


def _generate(rng: np.random.Generator, count: int, shape: Shape) -> dict[str, Any]:
    sets = draw_key_sets(rng, count, shape, shape.length)
    events: dict[str, Any] = {f"key{position}": keys for position, keys in enumerate(sets)}
    events["rejected"] = choose(rng, count, shape.aborts)
    return events


def grep_and_sum(shape: Shape | None = None) -> Workload:
    """Four keys per event, the most skewed of the three; the grep may reject a share of the events."""
    default = replace(Shape(), keys=10_000, skew=1.4, multi_partition=0.5, aborts=0.0, length=4)
    chosen = shape or default
    return Workload("grep-sum", (states,), (sum_transaction(chosen.length),), chosen, _generate)
