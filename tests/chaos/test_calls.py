"""Real processes and SIGKILL in the middle of calls: every answer once, and no logged call again."""

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

import everstream as es
from tests.sampling import sampled

CALLS, CONCURRENCY = 3_000, 20


class Ask:
    """Answers after a moment, and writes each question down first."""

    def __init__(self, asked: Path) -> None:
        self.asked = str(asked)

    async def __call__(self, number: int) -> tuple[int, int]:
        file = os.open(self.asked, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b"%d\n" % number)
        os.close(file)
        await asyncio.sleep(0.2 if number % 200 == 0 else 0.005)
        return number, number * number


@pytest.mark.parametrize("ordered", sampled([False, True], [False]))
def test_kills_in_the_middle_of_calls_lose_and_repeat_nothing_that_was_logged(
    tmp_path: Path, ordered: bool
) -> None:
    pipeline = es.Pipeline("asking")
    numbers = pipeline.source(es.Range(CALLS, batch=100), name="numbers")
    answers = numbers.map_async(
        Ask(tmp_path / "asked"), concurrency=CONCURRENCY, ordered=ordered, name="ask", shards=2
    )
    answers.collect(name="out")
    result = pipeline.run(
        engine="local",
        workers=2,
        store=str(tmp_path / "store"),
        checkpoint=es.Coordinated(every="1h"),  # a rollback goes back to the start
        kill=["ask:0@500", "ask:1@1000"],
        max_restarts=10,
    )
    assert len(result.recoveries) == 2
    assert sorted(result.collected("out")) == [(n, n * n) for n in range(CALLS)]
    asked = Counter(map(int, (tmp_path / "asked").read_text().split()))
    assert asked.keys() == set(range(CALLS))
    again = asked.total() - CALLS
    # Each kill interrupts both shards: what was under way, or had arrived and was not yet written.
    assert 0 < again <= 2 * 2 * 4 * CONCURRENCY
