"""Streaming Ledger: money and assets move between accounts; what leaves one enters another."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from everstream.transactions.definition import ABORT, transaction
from everstream.transactions.tables import Table
from everstream_lab.workloads.transactions.shape import Shape, Workload, choose, draw_key_sets

INITIAL = 1_000_000
_IMPOSSIBLE = 1 << 60

accounts = Table("accounts", value="int64", initial=INITIAL)
assets = Table("assets", value="int64", initial=INITIAL)


@transaction(
    src=accounts.key("from_account"),
    dst=accounts.key("to_account"),
    src_asset=assets.key("from_asset"),
    dst_asset=assets.key("to_asset"),
    writes=("src", "dst", "src_asset", "dst_asset"),
)
def transfer(src, dst, src_asset, dst_asset, amount, units):  # type: ignore[no-untyped-def]
    if src < amount or src_asset < units:
        return ABORT
    return src - amount, dst + amount, src_asset - units, dst_asset + units


@transaction(
    dst=accounts.key("to_account"), dst_asset=assets.key("to_asset"), writes=("dst", "dst_asset")
)
def deposit(dst, dst_asset, amount, units):  # type: ignore[no-untyped-def]
    return dst + amount, dst_asset + units


_NAMES = ["transfer", "deposit"]
_TRANSFERS = 0.5


def _generate(rng: np.random.Generator, count: int, shape: Shape) -> dict[str, Any]:
    kinds = np.where(choose(rng, count, _TRANSFERS), 0, 1).astype(np.uint8)
    from_account, to_account = draw_key_sets(rng, count, shape, 2, distinct=[1])
    from_asset, to_asset = draw_key_sets(rng, count, shape, 2, distinct=[1])
    amount = rng.integers(1, 100, count)
    doomed = (kinds == 0) & choose(rng, count, min(1.0, shape.aborts / _TRANSFERS))
    return {
        "transaction": pl.Series(kinds).cat.to(pl.Enum(_NAMES)),
        "from_account": from_account,
        "to_account": to_account,
        "from_asset": from_asset,
        "to_asset": to_asset,
        "amount": np.where(doomed, _IMPOSSIBLE, amount),
        "units": rng.integers(1, 100, count),
    }


def streaming_ledger(shape: Shape | None = None) -> Workload:
    """Half transfers over two accounts and two assets, half deposits, over keys used evenly.

    There are few keys, so that an epoch has many dependencies.
    """
    default = replace(Shape(), keys=1_000, skew=0.0, multi_partition=1.0, aborts=0.1)
    return Workload("ledger", (accounts, assets), (transfer, deposit), shape or default, _generate)
