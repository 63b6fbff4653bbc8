"""Random records of random types, and a sink that two shards write them to, killed at random.

A seed makes the records, how they are cut into batches, which shard gets them, and where both
shards die. What a generation does after its last whole checkpoint is lost with it, as in a run: the
next one restores that checkpoint, lets the sink recover and goes through the rest again, cut anew.
"""

import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from everstream.core.permits import permit
from everstream.errors import RefusedRecords, UserError
from everstream.pipeline.batch import Batch, taken, without
from everstream.pipeline.sink import Committable, Writer
from tests.connectors.column_places import ColumnPlace, same

Make = Callable[[random.Random], Any]
SHARDS = 2
MOMENTS = ("while it writes", "before it persists", "before it commits", "between two commits")
NAMING = ("column '{name}'", "with {name}", "without {name}")
BERLIN = ZoneInfo("Europe/Berlin")


def _moment(chance: random.Random) -> datetime:
    return datetime(1900, 1, 1) + timedelta(microseconds=chance.randrange(10**16))


def _decimal(chance: random.Random) -> Decimal:
    return Decimal(chance.randrange(-(10**12), 10**12)).scaleb(-chance.choice([0, 2, 2, 4, 9]))


def _text(chance: random.Random) -> str:
    return "".join(chance.choices('aé"\n,;\\ 01\t漢', k=chance.randrange(6)))


SIMPLE: dict[str, Make] = {
    "ints": lambda c: c.randrange(-1000, 1000),
    "large": lambda c: c.choice([2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]),
    "huge": lambda c: c.choice([2**63, 2**64 - 1, 2**64, -(2**63) - 1, 2**127, 2**200]),
    "floats": lambda c: c.choice([c.random(), c.random() * 1e300, 4.0, -0.0]),
    "odd floats": lambda c: c.choice([float("nan"), float("inf"), -float("inf")]),
    "bools": lambda c: c.random() < 0.5,
    "texts": _text,
    "odd texts": lambda c: c.choice(["a\0b", "\ud800", "true", "1", "NaN", "null"]),
    "bytes": lambda c: c.randbytes(3),
    "decimals": _decimal,
    "odd decimals": lambda c: Decimal(c.choice(["1E+30", "1E-30", "NaN", "Infinity"])),
    "dates": lambda c: _moment(c).date(),
    "moments": _moment,
    "instants": lambda c: _moment(c).replace(tzinfo=UTC),
    "local instants": lambda c: _moment(c).replace(tzinfo=BERLIN),
    "times": lambda c: _moment(c).time(),
    "spans": lambda c: _moment(c) - datetime(1970, 1, 1),
}
NESTED: dict[str, Make] = {
    "lists": lambda c: [c.randrange(9) for _ in range(c.randrange(3))],
    "lists of floats": lambda c: [c.random() for _ in range(1 + c.randrange(2))],
    "lists of all": lambda c: [_any(c, SIMPLE) for _ in range(c.randrange(3))],
    "dicts": lambda c: {"x": c.randrange(9), "y": _text(c)},
    "more dicts": lambda c: {name: c.random() for name in c.sample("xyz", 2)},
    "dicts of all": lambda c: {name: _any(c, SIMPLE) for name in c.sample("xyz", 1)},
    "lists of dicts": lambda c: [{"x": c.randrange(9)}] * c.randrange(3),
}
ALL = {**SIMPLE, **NESTED}


def _any(chance: random.Random, kinds: dict[str, Make]) -> Any:
    return kinds[chance.choice(list(kinds))](chance)


def records_of(chance: random.Random) -> list[dict[str, Any]]:
    """Records whose columns have one type most of the time."""
    columns: dict[str, tuple[Make, Make, float]] = {}
    for name in "abcd"[: chance.randrange(1, 5)]:
        usual, other = (ALL[chance.choice(list(ALL))] for _ in range(2))
        columns[name] = usual, other, chance.choice([0, 0.1, 0.4])
    records: list[dict[str, Any]] = []
    for number in range(chance.randrange(5, 60)):
        record: dict[str, Any] = {"id": number}
        for name, (usual, other, drifting) in columns.items():
            if chance.random() < 0.03:
                continue
            make = other if chance.random() < drifting else usual
            record[name] = None if chance.random() < 0.1 else make(chance)
        records.append(record)
    return records


def batches_of(records: list[dict[str, Any]], chance: random.Random) -> list[Batch]:
    """The records in order, cut at random; as a DataFrame where they are all alike."""
    batches: list[Batch] = []
    while records:
        size = chance.choice([1, 2, 5, 20])
        batch, records = records[:size], records[size:]
        whole = all(record.keys() == batch[0].keys() for record in batch)
        plain = all(
            len({type(record[name]) for record in batch}) == 1
            and type(batch[0][name]) in (int, float, str, bool, date)
            for name in (batch[0] if whole else ())
        )
        batches.append(batch)
        if whole and plain and chance.random() < 0.5:
            # What a DataFrame cannot have stays a record.
            with suppress(OverflowError, UnicodeEncodeError):
                frame = pl.DataFrame(batch, strict=True)
                if repr(frame.to_dicts()) == repr(batch):
                    batches[-1] = frame
    return batches


@dataclass
class Saved:
    """What a whole checkpoint has: how far each shard was, and what it left out."""

    number: int = 0
    places: list[int] = field(default_factory=lambda: [0] * SHARDS)
    refused: dict[int, str] = field(default_factory=dict)
    writers: list[Any] = field(default_factory=lambda: [None] * SHARDS)
    transactions: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(SHARDS)])


class Died(Exception):
    """Both shards are gone."""


class Run:
    """One seed from its first record to its last."""

    def __init__(self, place: ColumnPlace, seed: int) -> None:
        self.place = place
        self.chance = random.Random(seed)
        self.records = records_of(self.chance)
        self.inputs: list[list[dict[str, Any]]] = [[] for _ in range(SHARDS)]
        for record in self.records:
            self.chance.choice(self.inputs).append(record)
        self.saved = Saved()
        self.committed = 0
        self.generation = 0
        self.kills = self.chance.randrange(4)
        self.refusal: str | None = None

    def go(self) -> None:
        """To the end, or until the sink refuses to go on, by name."""
        place = self.place
        place.sink().start_fresh("values", "out", place.store, replace=False)
        while self._left():
            try:
                self._live()
            except Died:
                self.kills -= 1
            except UserError as error:
                assert not isinstance(error, RefusedRecords), "it belongs to a record"
                assert "operator 'out'" in error.message and "column '" in error.message, error
                self.refusal = error.message
                return

    def _left(self) -> bool:
        places = zip(self.saved.places, self.inputs, strict=True)
        return self.committed < self.saved.number or any(p < len(i) for p, i in places)

    def _live(self) -> None:
        self.generation += 1
        writers = [self._opened(shard) for shard in range(SHARDS)]
        self.committed = self.saved.number
        while self._left():
            doomed = self.kills > 0 and self.chance.random() < 0.4
            moment = self.chance.choice(MOMENTS) if doomed else None
            self._epoch(writers, moment)
        for writer in writers:
            writer.close()

    def _opened(self, shard: int) -> Writer:
        sink_shard = self.place.sink_shard(self.generation, shard, SHARDS)
        writer: Writer = pickle.loads(pickle.dumps(self.place.sink())).open(sink_shard)
        if self.saved.writers[shard] is not None:
            writer.restore(pickle.loads(pickle.dumps(self.saved.writers[shard])))
        waiting = [pickle.loads(data) for data in self.saved.transactions[shard]]
        assert not writer.recover(waiting, permit(self.saved.number))
        return writer

    def _epoch(self, writers: list[Writer], moment: str | None) -> None:
        number, places = self.saved.number + 1, list(self.saved.places)
        refused, amount = dict(self.saved.refused), self.chance.choice([3, 10, 40])
        order = self.chance.sample(range(SHARDS), SHARDS)
        for shard in order:
            part = self.inputs[shard][places[shard] :][:amount]
            for batch in batches_of(part, self.chance):
                if moment == MOMENTS[0] and self.chance.random() < 0.3:
                    raise Died
                refused |= written(writers[shard], batch)
            places[shard] += len(part)
        transactions = [writer.prepare(number) for writer in writers]
        if moment in MOMENTS[:2]:
            raise Died
        for transaction in transactions:
            if transaction is not None:
                transaction.persist()
        self.saved = Saved(
            number,
            places,
            refused,
            [writer.saved() for writer in writers],
            [[] if t is None else [pickle.dumps(t)] for t in transactions],
        )
        if moment == MOMENTS[2]:
            raise Died
        for position, shard in enumerate(order):
            if moment == MOMENTS[3] and position:
                raise Died
            self._commit(transactions[shard], number)
        self.committed = number

    def _commit(self, transaction: Committable | None, number: int) -> None:
        if transaction is not None:
            transaction.commit(permit(number))

    def check(self) -> None:
        """Every record is there once, as it was sent, or was refused by name."""
        rows: dict[int, dict[str, Any]] = {}
        for row in self.place.rows():
            number = int(row["id"])
            assert number not in rows, f"record {number} is there twice"
            rows[number] = row
        kind, refused = self.place.kind, self.saved.refused
        shown = {
            r["id"] for i, p in zip(self.inputs, self.saved.places, strict=True) for r in i[:p]
        }
        if self.refusal is not None and self.committed < self.saved.number:
            return  # what the last whole checkpoint holds is shown when the run is taken up again
        assert rows.keys() == shown - refused.keys(), "records are lost, or there though refused"
        decimals = {n for r in self.records for n, v in r.items() if isinstance(v, Decimal)}
        for number, row in rows.items():
            sent = self.records[number]
            assert row.keys() >= {n for n, v in sent.items() if v is not None}
            for name, value in row.items():
                assert same(sent.get(name), value, kind, name in decimals), (
                    f"record {number}, column '{name}': {sent.get(name)!r} became {value!r}"
                )
        for number, reason in refused.items():
            assert "operator 'out'" in reason, reason
            named = any(text.format(name=name) in reason for name in "abcd" for text in NAMING)
            assert named, f"{reason} names no column of {self.records[number]}"


def written(writer: Writer, batch: Batch) -> dict[int, str]:
    """Write what the sink takes, as an engine does; the others by their number."""
    refused: dict[int, str] = {}
    while len(batch):
        try:
            writer.write(batch)
            break
        except RefusedRecords as error:
            records = taken(batch, list(error.rows))
            refused |= {
                record["id"]: reason
                for record, reason in zip(records, error.rows.values(), strict=True)
            }
            batch = without(batch, error.rows)
    return refused
