"""Transactions under every protocol, with faults at every moment: each outcome once, tables right."""

from functools import cache
from typing import Any

import pytest

import everstream as es
from everstream.connectors.generate.sources import Range
from everstream.core.scheme import scheme_of
from everstream.pipeline.stream import Pipeline
from everstream.simulation.faults import Faults
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
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
