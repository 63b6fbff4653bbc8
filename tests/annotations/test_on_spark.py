"""Annotated programs on Spark: processes are killed, and the result is that of the plain call."""

from collections import Counter
from pathlib import Path

import everstream as es
from tests.spark import MASTER


def is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def numbers(limit: int):  # type: ignore[no-untyped-def]
    yield from range(2, limit)


@es.annotated
def primes(limit: int) -> tuple[int, list[int], Counter[int]]:
    count = 0
    last: list[int] = []
    digits: Counter[int] = Counter()
    with es.ToStream(batch=20):
        for n in numbers(limit):
            if n % 5 == 0:
                continue
            with es.Stage(replicate=2, name="test"):
                prime = is_prime(n)
            with es.Stage(state=[count, last], name="keep"):
                count += prime
                if not prime:
                    continue
                last = [*last[-9:], n]
            with es.Stage(state=[digits], key=n % 10, replicate=2, name="digits"):
                digits[n % 10] += 1
    return count, last, digits


@es.annotated
def powers(limit: int) -> list[int]:
    power = 1
    found: list[int] = []
    with es.ToStream(state=[power], batch=5):
        while len(str(power)) < limit:
            power *= 3
            with es.Stage(state=[found], name="keep"):
                found.append(power % 1_000_003)
    return found


def test_killed_processes_change_nothing_in_what_is_returned(tmp_path: Path) -> None:
    result = primes.pipeline(4_000).run(
        checkpoint=es.Coordinated(every="100ms"),
        store=tmp_path / "store",
        master=MASTER,
        kill=["keep@1500", "source@2500"],
    )
    assert result.returned == primes(4_000)
    assert any(report.injected for report in result.recoveries)


def test_a_while_loop_goes_on_from_its_state_after_a_kill_and_in_a_later_run(
    tmp_path: Path,
) -> None:
    called = powers(200)
    pipeline = powers.pipeline(200)
    first = pipeline.run(
        checkpoint=es.Coordinated(every_records=20),
        store=tmp_path / "store",
        master=MASTER,
        kill=["keep@150"],
        until=lambda snapshot: snapshot.records_read > 200,
    )
    assert any(report.injected for report in first.recoveries)
    last = powers.pipeline(200).run(store=tmp_path / "store", master=MASTER)
    assert last.returned == called
    assert first.returned in (None, called)
