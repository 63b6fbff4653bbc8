"""Transactions under every protocol, with faults at every moment: each outcome once, tables right."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import everstream as es
from everstream.connectors.generate.sources import Range
from everstream.core.scheme import scheme_of
from everstream.events import PlanChanged
from everstream.pipeline.stream import Pipeline
from everstream.simulation.faults import Faults
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.storm import policy_for, scheme_for
from everstream.simulation.world import World
from everstream.transactions.interpreter import Interpreter
from tests.transactions import bank

EVENTS = 90
PROTOCOLS = {
    "aligned": es.Coordinated(every="100ms"),
    "unaligned": es.Coordinated(every="100ms", mode="unaligned"),
    "uncoordinated": es.Uncoordinated(every="100ms"),
    "hmnr": es.CommunicationInduced(every="100ms"),
}
SEEDS = 4


def event(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "transaction": ("transfer", "borrow")[n % 3 == 0],
        "a": n * 7 % 5,
        "b": n * 3 % 4,
        "amount": n * 31 % 90,
    }


def row(outcome: dict[str, Any]) -> tuple[Any, ...]:
    return (
        outcome["position"],
        outcome["n"],
        outcome["committed"],
        outcome["src"],
        outcome["here"],
    )


@cache
def expected() -> dict[str, list[Any]]:
    events = [event(n) for n in range(EVENTS)]
    interpreter = Interpreter([bank.accounts], [bank.transfer, bank.borrow])
    return {
        "out": [
            (n, n, outcome.committed, outcome.reads.get("src"), outcome.reads.get("here"))
            for n, outcome in enumerate(interpreter.run(events))
        ]
    }


def ledger(recovery: str) -> Shape:
    def build(pipeline: Pipeline, world: int) -> None:
        events = pipeline.source(Range(EVENTS, batch=2), name="numbers").map(event, name="events")
        outcomes = events.on_demand().transact(
            bank.transfer, bank.borrow, recovery=recovery, name="book"
        )
        rows = outcomes.on_demand().map(row, name="rows")
        rows.sink(OutsideSink(world), name="out")

    return Shape("ledger", 3, build, expected)


def typed(outcome: dict[str, Any]) -> tuple[Any, ...]:
    """With the values as text: 1 and 1.0 differ."""
    reads = [repr(outcome[name]) for name in READS]
    return (outcome["position"], outcome["n"], outcome["committed"], *reads)


READS = ["src", "dst", "here", "there"]
LAST = 5
"""Keys read at the end, which shows every value that the tables hold."""


def partitioned(seed: int, recovery: str) -> Shape:
    """Transactions over two to four shards; the last events read every key."""
    chance = random.Random(seed)
    shards, workers, keys = chance.randint(2, 4), chance.randint(1, 4), chance.randint(2, LAST)
    count, batch = chance.randint(20, 50), chance.randint(1, 9)

    def one(n: int) -> dict[str, Any]:
        a, b, amount = n * 7 % keys, n * 3 % keys, n * 31 % 90
        if n >= count:
            a, b, amount = n - count, (n - count + 1) % LAST, 10_000
        return {"n": n, "transaction": KINDS[n % 3], "a": a, "b": b, "amount": amount}

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(count + LAST, batch=batch), name="numbers")
        outcomes = numbers.map(one, name="events").transact(
            bank.transfer, bank.borrow, recovery=recovery, name="book", shards=shards
        )
        outcomes.map(typed, name="rows").sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        interpreter = Interpreter([bank.accounts], [bank.transfer, bank.borrow])
        outcomes = interpreter.run([one(n) for n in range(count + LAST)])
        return {
            "out": [
                (n, n, outcome.committed, *(repr(outcome.reads.get(name)) for name in READS))
                for n, outcome in enumerate(outcomes)
            ]
        }

    return Shape("partitioned", workers, build, expected)


KINDS = ("transfer", "borrow", "transfer")
IN_ORDER = frozenset({"numbers", "events", "book-order"})
"""Operators that put the events in order, with one shard each."""
RESCALES = Faults(rescales=6, worker_kills=2, ambushes=1)
ON_CYCLES = {
    "unaligned": es.Coordinated(every="100ms", mode="unaligned"),
    "uncoordinated": es.Uncoordinated(every="100ms"),
    "hmnr": es.CommunicationInduced(every="100ms"),
    "bcs": es.CommunicationInduced(rule="bcs", every="100ms"),
}


def run_partitioned(seed: int) -> int:
    """How many failures the run recovered from."""
    protocol = list(ON_CYCLES)[seed % len(ON_CYCLES)]
    recovery = SCHEMES[seed // len(ON_CYCLES) % len(SCHEMES)]
    shape = partitioned(seed, recovery)
    history = World(seed, shape, Faults(), scheme=scheme_of(ON_CYCLES[protocol])).run()
    assert history.right, f"seed {seed}, {protocol}, {recovery}: {history.violations}"
    return history.recoveries


SCHEMES = [name for name in bank.SCHEMES if name != "none"]


def test_transactions_over_several_shards_are_serial_under_every_protocol_for_cycles() -> None:
    assert sum(map(run_partitioned, range(30))) > 15


@pytest.mark.parametrize("protocol", ON_CYCLES)
def test_transactions_over_several_shards_are_serial_while_their_number_changes(
    protocol: str,
) -> None:
    changes = 0
    for seed in range(6):
        shape = replace(partitioned(seed, "delta"), fixed=IN_ORDER)
        scheme, policy = scheme_for(protocol, seed), policy_for(protocol)
        history = World(seed, shape, RESCALES, scheme, policy).run()
        assert history.right, f"seed {seed} under {protocol}: {history.violations}"
        changes += sum(isinstance(event, PlanChanged) for event in history.events)
    assert changes > 0


@pytest.mark.long
@pytest.mark.parametrize("case", range(10))
def test_transactions_over_several_shards_are_serial_for_a_thousand_seeds(case: int) -> None:
    assert sum(map(run_partitioned, range(case * 100, case * 100 + 100))) > 50


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_outcome_appears_once_under_every_protocol(protocol: str) -> None:
    recoveries = 0
    for seed in range(SEEDS):
        shape = ledger(("delta", "wal")[seed % 2])
        world = World(seed, shape, Faults(), scheme=scheme_of(PROTOCOLS[protocol]))
        history = world.run()
        assert history.right, f"seed {seed}: {history.violations}"
        recoveries += history.recoveries
    assert recoveries > 0
