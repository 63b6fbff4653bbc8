"""Moves money between accounts: transactions over a shared table, exact through every crash.

A transfer reads and writes two accounts at once and aborts if there is not enough money. Each
event's outcome flows on: whether it committed, and the balances it found.
"""

import polars as pl

import everstream as es
from everstream.inspection import read_tables

ACCOUNTS = 1_000
EVENTS = 200_000
INITIAL_CENTS = 10_000

accounts = es.Table("accounts", value="int64", initial=INITIAL_CENTS)


@es.transaction(src=accounts.key("from"), dst=accounts.key("to"), writes=("src", "dst"))
def transfer(src: int, dst: int, cents: int) -> object:
    if src < cents:
        return es.ABORT
    return src - cents, dst + cents


@es.transaction(dst=accounts.key("to"), writes="dst")
def deposit(dst: int, cents: int) -> int:
    return dst + cents


def events(start: int, stop: int) -> pl.DataFrame:
    """Event number n, made up but always the same: one in ten puts money in, nine move it."""
    n = pl.int_range(start, stop, dtype=pl.Int64)
    return pl.select(
        pl.when(n % 10 == 0)
        .then(pl.lit("deposit"))
        .otherwise(pl.lit("transfer"))
        .alias("transaction"),
        (n * 7919 % ACCOUNTS).alias("from"),
        ((n * 7919 + n * n % (ACCOUNTS - 1) + 1) % ACCOUNTS).alias("to"),
        (n * 31 % 5_000).alias("cents"),
    )


pipeline = es.Pipeline("ledger")
(
    pipeline.source(es.FromFunction(events, total=EVENTS, batch=10_000), name="events")
    .transact(transfer, deposit, parallelism=2, recovery="delta", name="ledger")
    .sink(es.Parquet("outcomes/"), name="outcomes")
)
if __name__ == "__main__":
    pipeline.run(checkpoint=es.Coordinated(every="2s"), store="checkpoints/ledger")
    outcomes = pl.read_parquet("outcomes/*.parquet")
    print(outcomes.group_by("transaction", "committed").len())
    balances = read_tables("checkpoints/ledger", pipeline, "ledger")["accounts"]
    deposited = outcomes.filter(pl.col("transaction") == "deposit")["cents"].sum()
    print("in all accounts:", balances["value"].sum(), "cents")
    print("given and paid in:", INITIAL_CENTS * len(balances) + deposited, "cents")
