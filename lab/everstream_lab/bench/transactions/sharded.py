"""Transactions over 1, 2, 4 shards: a pipeline whose tables are partitioned, against a plain loop.

A rate is events divided by the time from the first event until the last outcome is committed, on
this machine. With more shards than cores it cannot rise, so the share of the work that the busiest
shard has is given beside it: that is what limits a machine with a core per shard.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import everstream as es
from everstream.engine.result import RunResult
from everstream.errors import RunFailed
from everstream.inspection import read_tables
from everstream.pipeline.keys import KEY_GROUPS, hash_column
from everstream.pipeline.source import Source
from everstream.transactions.compiled import spin
from everstream.transactions.definition import ABORT, Transaction, transaction
from everstream.transactions.interpreter import Interpreter
from everstream_lab.bench.transactions.studies import Plan, spin_iterations

MODULUS = 2_147_483_647
counters = es.Table("counters", value="int64", initial=1)
SHARES = (0.0, 0.1, 0.5)
"""Of transactions whose keys are drawn freely, instead of from one key group."""
_REJECTED = 0.05


@dataclass(frozen=True)
class ShardRow:
    """One run."""

    shards: int
    multi_partition: float
    events_per_s: float
    busiest_share: float
    """Of all operations, those that the busiest shard runs: 1 / shards at best."""
    over_shards: float
    """The share of transactions with keys in more than one shard."""


@lru_cache(maxsize=4)
def add(iterations: int) -> Transaction:
    """Adds the value of one key to another, and works for as long as `iterations` takes."""

    @transaction(here=counters.key("key0"), there=counters.key("key1"), writes="here")
    def total(here, there, rejected):  # type: ignore[no-untyped-def]
        if rejected or spin(iterations, here) == 0:
            return ABORT
        return (here + there) % MODULUS

    return total


def shards(
    plan: Plan, counts: Sequence[int], shares: Sequence[float], progress: Any
) -> list[dict[str, Any]]:
    """Every number of shards for every share of transactions over partitions; the output is checked."""
    rows = []
    iterations = spin_iterations(plan.operation_cost_s)
    keys = plan.knobs.get("keys") or 10_000
    for count in counts:
        progress(f"{count} shard(s): compiling")
        _run(add(iterations), _events(256, keys, 0.5, plan.seed), count, plan.folder / "first")
    for share in shares:
        events = _events(plan.events, keys, share, plan.seed)
        truth = Interpreter([counters], [replace(add(0), interpreted=True)])
        verdicts = [outcome.committed for outcome in truth.run(events.to_dicts())]
        for count in counts:
            progress(f"{count} shard(s), {share:.0%} over partitions")
            folder = plan.folder / f"shards-{count}-{share}"
            result, shown, table = _run(add(iterations), events, count, folder)
            if shown["committed"].to_list() != verdicts or table != truth.tables["counters"]:
                raise RunFailed(f"{count} shards: outcomes or tables differ from those of a loop")
            owners = np.stack([_groups(events[key]) % count for key in ("key0", "key1")])
            row = ShardRow(
                count,
                share,
                len(events) / (result.wall_s - result.startup_s),
                np.bincount(owners.ravel().astype(np.int64)).max() / owners.size,
                float((owners[0] != owners[1]).mean()),
            )
            rows.append(vars(row))
    return rows


def _events(count: int, keys: int, multi_partition: float, seed: int) -> pl.DataFrame:
    """Two keys each: of one key group, which is always in one shard, or drawn freely."""
    chance = np.random.default_rng(seed)
    groups = _groups(pl.Series(np.arange(keys)))
    of_group = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups.astype(np.int64), minlength=KEY_GROUPS)
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    first = chance.integers(0, keys, count)
    home = groups[first].astype(np.int64)
    near = of_group[begins[home] + (chance.random(count) * sizes[home]).astype(np.int64)]
    free = chance.integers(0, keys, count)
    crosses = chance.random(count) < multi_partition
    return pl.DataFrame(
        {
            "key0": first,
            "key1": np.where(crosses, free, near),
            "rejected": chance.random(count) < _REJECTED,
        }
    )


def _run(
    declared: Transaction, events: pl.DataFrame, count: int, folder: Path
) -> tuple[RunResult, pl.DataFrame, dict[Any, Any]]:
    """The run, its outcomes in order, and the table."""
    pipeline = es.Pipeline("sharded")
    source: Source[Any] = es.FromFunction(
        lambda start, stop: events[start:stop], total=len(events), batch=4096
    )
    pipeline.source(source).transact(declared, shards=count, name="book").select(
        "position", "committed"
    ).collect()
    result = pipeline.run(
        engine="local",
        workers=count,
        store=folder,
        fresh=True,
        checkpoint=es.Coordinated(every="1s", mode="unaligned"),
    )
    frame = read_tables(folder, pipeline, "book")["counters"]
    return result, result.to_polars().sort("position"), dict(frame.iter_rows())


def _groups(keys: pl.Series) -> npt.NDArray[np.uint64]:
    """The key group of each key, which leads to its shard."""
    return hash_column(keys) % np.uint64(KEY_GROUPS)
