"""Real processes and SIGKILL: state that expires, collections per key and timers, in memory and on disk."""

from pathlib import Path
from typing import Any

import pytest

import everstream as es
from tests.sampling import sampled

RECORDS, KEYS, TTL_MS, ECHO_MS = 20_000, 400, 300, 50


def key_of(number: int) -> int:
    """Some keys come often, others are silent for longer than the time to live."""
    return (number * 7919 % 1009) % (7 if number % 3 else KEYS)


class Keeps(es.Operator):
    """Counts visits since the last silence, keeps the last digits in a map, and echoes a while later."""

    visits = es.Keyed[int](init=int, ttl=TTL_MS / 1000, ttl_time="event")
    digits = es.KeyedMap[int, int]()

    def process(self, row: dict[str, int], ctx: es.Context) -> None:
        number = row["n"]
        self.visits[ctx.key] += 1
        self.digits[ctx.key][number % 10] = number
        ctx.emit((ctx.key, number, self.visits[ctx.key], len(self.digits[ctx.key])))
        ctx.timers.set((number + ECHO_MS) * 1000, name=str(number))

    def on_timer(self, key: int, name: str, at: int, ctx: es.Context) -> None:
        ctx.emit((key, "echo", int(name), at))


def expected() -> list[tuple[Any, ...]]:
    visits: dict[int, int] = {}
    last: dict[int, int] = {}
    digits: dict[int, set[int]] = {}
    out: list[tuple[Any, ...]] = []
    for n in range(RECORDS):
        key = key_of(n)
        lives = key in last and n < last[key] + TTL_MS
        visits[key], last[key] = (visits[key] + 1 if lives else 1), n
        digits.setdefault(key, set()).add(n % 10)
        out.append((key, n, visits[key], len(digits[key])))
        out.append((key, "echo", n, (n + ECHO_MS) * 1000))
    return out


@pytest.mark.parametrize("state", sampled(["memory", "disk"], ["disk"]))
def test_kills_neither_revive_what_has_expired_nor_lose_what_lives(
    tmp_path: Path, state: Any
) -> None:
    pipeline = es.Pipeline("keeping")
    rows = pipeline.source(es.Range(RECORDS, column="n", batch=100), name="numbers")
    timed = rows.event_time("n", unit="ms").key_by(lambda row: key_of(row["n"]))
    timed.process(Keeps(), name="keep", shards=2, state=state).collect(name="out")
    result = pipeline.run(
        engine="local",
        workers=2,
        store=str(tmp_path / "store"),
        checkpoint=es.Coordinated(every="100ms"),
        kill=["keep:0@3000", "keep:1@6000", "numbers:0@12000"],
        max_restarts=10,
    )
    assert len(result.recoveries) == 3
    assert sorted(result.collected("out"), key=repr) == sorted(expected(), key=repr)
