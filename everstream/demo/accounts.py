"""The accounts workload: payments come in, each account's balance goes out after every payment.

Every output record depends on all payments of its account before it, so a single payment lost,
counted twice or taken in the wrong order shows in every balance after it. The same payments in a
plain loop (`plain_program`) say what must come out.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import everstream as es

ACCOUNTS = 1_000
BLOCK = 4_096

Entry = tuple[int, int, int]
"""Account, how many payments it has had, its balance in cents."""


def payment(number: int) -> tuple[int, int]:
    """Payment by number: account and cents. Scattered, yet the same whenever it is asked for."""
    mixed = (number * 2_654_435_761) & 0xFFFFFFFF
    return (mixed >> 7) % ACCOUNTS, mixed % 20_001 - 10_000


def payments(start: int, stop: int) -> list[Any]:
    return [payment(number) for number in range(start, stop)]


def account_of(record: tuple[int, int]) -> int:
    return record[0]


class Balance(es.Operator):
    """Keeps each account's balance and emits it whenever it changes."""

    book: es.Keyed[tuple[int, int]] = es.Keyed(init=lambda: (0, 0))

    def process(self, record: tuple[int, int], ctx: es.Context) -> None:
        account, cents = record
        count, balance = self.book[account]
        count, balance = count + 1, balance + cents
        self.book[account] = (count, balance)
        ctx.emit((account, count, balance))


def accounts_pipeline(total: int, rate: float, output: Path, shards: int = 2) -> es.Pipeline:
    """`total` payments at `rate` per second, into JSON lines in `output`, exactly once."""
    pipeline = es.Pipeline("accounts")
    source = es.Paced(es.FromFunction(payments, total=total, batch=BLOCK), rate)
    (
        pipeline.source(source, name="payments")
        .key_by(account_of)
        .process(Balance(), name="balance", shards=shards)
        .sink(es.JsonLines(output), name="ledger")
    )
    return pipeline


def plain_program(total: int) -> Iterator[Entry]:
    """The same, without any of Everstream."""
    book: dict[int, tuple[int, int]] = {}
    for number in range(total):
        account, cents = payment(number)
        count, balance = book.get(account, (0, 0))
        book[account] = (count + 1, balance + cents)
        yield (account, *book[account])


def entries(output: Path) -> Iterator[Entry]:
    """What the pipeline has committed."""
    for path in sorted(output.glob("*.jsonl")):
        with path.open() as lines:
            for line in lines:
                yield tuple(json.loads(line))
