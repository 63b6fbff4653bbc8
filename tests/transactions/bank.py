"""A small bank that tests run transactions on: numbers and records, integer and string keys."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

import everstream.transactions as es
from everstream.transactions.interpreter import EventOutcome
from everstream.transactions.recovery import PAPERS

accounts = es.Table("accounts", value="int64", initial=100)
meters = es.Table("meters", value={"total": "float64", "count": "int64"}, initial=0, keys="string")


@es.transaction(src=accounts.key("a"), dst=accounts.key("b"), writes=("src", "dst"))
def transfer(src, dst, amount):
    if src < amount:
        return es.ABORT
    return src - amount, dst + amount


@es.transaction(here=accounts.key("a"), there=accounts.key("b"), writes="here")
def borrow(here, there, amount):
    if there > 150:  # noqa: SIM108
        taken = there // 2
    else:
        taken = amount
    if here + taken > 5000:
        return es.ABORT
    return here + taken


@es.transaction(meter=meters.key("name"), account=accounts.key("b"), writes=("account", "meter"))
def measure(meter, account, amount):
    share = meter.total / (meter.count + 1)
    if share > 120.0:
        return es.ABORT
    return account + meter.count, (meter.total + account * 0.1 + amount, meter.count + 1)


@es.transaction(left=accounts.key("a"), right=accounts.key("b"), meter=meters.key("name"))
def look(left, right, meter):
    return left + right + meter.count


SCHEMES = [*es.SCHEMES, *PAPERS]

TABLES = [accounts, meters]
TRANSACTIONS = [transfer, borrow, measure, look]
NAMES = [declared.name for declared in TRANSACTIONS]


def events(rows: list[tuple[int, int, int, int, int]]) -> pl.DataFrame:
    """Events from (type, a, b, name, amount) rows."""
    kinds = [NAMES[row[0]] for row in rows]
    return pl.DataFrame(
        {
            "transaction": pl.Series(kinds, dtype=pl.Enum(NAMES)),
            "a": pl.Series([row[1] for row in rows], dtype=pl.Int64),
            "b": pl.Series([row[2] for row in rows], dtype=pl.Int64),
            "name": pl.Series([f"m{row[3]}" for row in rows], dtype=pl.String),
            "amount": pl.Series([row[4] for row in rows], dtype=pl.Int64),
        }
    )


def random_events(count: int, seed: int, keys: int = 5) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    columns = [
        rng.integers(0, len(NAMES), count),
        rng.integers(0, keys, count),
        rng.integers(0, keys, count),
        rng.integers(0, 3, count),
        rng.integers(0, 80, count),
    ]
    return events([tuple(int(x) for x in row) for row in zip(*columns, strict=True)])  # type: ignore[misc]


def engine(recovery: str = "none", **options: Any) -> es.TransactionEngine:
    return es.TransactionEngine(TABLES, TRANSACTIONS, recovery=recovery, **options)


def content(run: es.TransactionEngine) -> dict[str, dict[int | str, Any]]:
    return {state.table.name: dict(state.items()) for state in run.states}


def truth(stream: pl.DataFrame) -> tuple[dict[str, dict[int | str, Any]], list[EventOutcome]]:
    interpreter = es.Interpreter(TABLES, TRANSACTIONS)
    outcomes = interpreter.run(stream.to_dicts())
    return interpreter.tables, outcomes


def reads_of(row: dict[str, Any], parameter: str) -> Any:
    """The value read for a parameter, from an outcome row whose records are flattened."""
    if parameter in row:
        return row[parameter]
    return tuple(value for name, value in row.items() if name.startswith(f"{parameter}."))


def assert_outcomes(frame: pl.DataFrame, expected: list[EventOutcome], first: int = 0) -> None:
    assert frame["event"].to_list() == list(range(first, first + len(expected)))
    for row, outcome in zip(frame.to_dicts(), expected, strict=True):
        assert row["committed"] == outcome.committed
        for parameter, value in outcome.reads.items():
            assert reads_of(row, parameter) == value


def source(stream: pl.DataFrame) -> Callable[[int, int], pl.DataFrame]:
    return lambda first, last: stream[first:last]


def feed(
    run: es.TransactionEngine, stream: pl.DataFrame, epoch_events: int, stop: int | None = None
) -> pl.DataFrame:
    """Process the stream from where the engine is, a punctuation after every `epoch_events`."""
    frames = []
    stop = len(stream) if stop is None else stop
    while run.next_event < stop:
        until = min(stop, (run.next_event // epoch_events + 1) * epoch_events)
        frames.append(run.process_batch(stream[run.next_event : until]))
        if until % epoch_events == 0:
            run.end_epoch()
    return pl.concat(frames) if frames else pl.DataFrame()
