"""Counts the primes below a limit by brute force: every number is divided by all before it.

Even numbers are done at once and primes take longest, so the load is as uneven as it can be. The
order of the answers does not matter, and their sum is kept in state.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numba import njit

import everstream as es
from everstream_lab.apps.application import Application, Tell, json_line

LIMITS = {"test": 5_000, "small": 50_000, "medium": 500_000, "large": 1_000_000, "huge": 2_000_000}


@njit(cache=True)
def is_prime(number: int) -> bool:
    divisor = 2
    while divisor < number and number % divisor != 0:
        divisor += 1
    return divisor == number


def limit_in(folder: Path) -> int:
    return int((folder / "limit").read_text())


def numbers(folder: Path) -> range:
    return range(2, limit_in(folder))


def sequential(folder: Path, output: Path) -> None:
    count = 0
    for number in numbers(folder):
        if is_prime(number):
            count += 1
    output.write_bytes(json_line({"primes": count}))


class Count(es.Operator):
    """Keeps the number of primes in state, and tells it in the end."""

    def process_batch(self, batch: list[bool], ctx: es.Context) -> None:  # type: ignore[override]
        ctx.state.put("primes", ctx.state.get("primes", 0) + sum(batch))

    def on_end(self, ctx: es.Context) -> None:
        ctx.emit({"primes": ctx.state.get("primes", 0)})


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 100) -> es.Pipeline:
    prime = es.Pipeline("prime")
    source = prime.source(es.FromList(numbers(folder), batch=batch), name="numbers")
    tested = source.map(is_prime, name="is_prime", shards=shards)
    return tested.process(Count(), name="count", shards=1).sink(es.JsonLines(parts))


@es.annotated
def annotated(limit: int, *, shards: int = 2, batch: int = 100) -> dict[str, int]:
    primes = 0
    with es.ToStream(batch=batch):
        for number in range(2, limit):
            with es.Stage(replicate=shards, name="is_prime"):
                prime = is_prime(number)
            with es.Stage(state=[primes], ordered=False, name="count"):
                primes += prime
    return {"primes": primes}


def annotated_pipeline(
    folder: Path, parts: Path, *, shards: int = 2, batch: int = 100
) -> es.Pipeline:
    """It returns its result, and writes no part files."""
    return annotated.pipeline(limit_in(folder), shards=shards, batch=batch)


def make_input(limit: int, folder: Path, tell: Tell) -> None:
    (folder / "limit").write_text(str(limit))


def gather(results: Iterable[bool]) -> list[dict[str, Any]]:
    return [{"primes": sum(results)}]


APPLICATION = Application(
    name="prime",
    title="primes by brute force",
    sizes=LIMITS,
    make_input=make_input,
    items=numbers,
    stages=(is_prime,),
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated_pipeline,
    result="primes.jsonl",
    gather=gather,
    batch=100,
    witness="count",
)
