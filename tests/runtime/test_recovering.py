"""Operators hear of failures, their own and those of others, and release what they hold."""

from typing import Any

import pytest

import everstream as es
from everstream import testing
from tests.protocol_choices import CHOICES

HEARD: list[tuple[str, ...]] = []


class Holding(es.Operator):
    """Opens something when it starts, and closes it when it ends."""

    seen = es.Keyed[int](init=int)

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def on_start(self, ctx: es.Context) -> None:
        HEARD.append(("opened", f"{ctx.operator}:{ctx.shard}"))

    def on_recover(self, reason: str, ctx: es.Context) -> None:
        HEARD.append(("recovers", f"{ctx.operator}:{ctx.shard}", reason))
        ctx.emit("recovered", output="log")

    def process(self, record: int, ctx: es.Context) -> None:
        self.seen[ctx.key] += 1
        ctx.emit(record)

    def on_stop(self, ctx: es.Context) -> None:
        HEARD.append(("closed", f"{ctx.operator}:{ctx.shard}"))
        if self.fails:
            raise OSError("already gone")


def two_operators(fails: bool = False) -> es.Pipeline:
    pipeline = es.Pipeline("peers")
    numbers = pipeline.source(es.FromList([]), name="numbers").key_by(lambda n: n)
    first = numbers.process(Holding(fails), name="first", shards=1)
    second = first.key_by(lambda n: n).process(Holding(fails), name="second", shards=2)
    second.side_output("log").sink(es.Collect(), name="log", shards=1)
    return second.sink(es.Collect(), name="out", shards=1)


@pytest.fixture(autouse=True)
def nothing_heard() -> None:
    HEARD.clear()


def test_a_survivor_closes_what_it_opened_and_hears_what_failed() -> None:
    with testing.harness(two_operators(), workers=4) as h:
        h.push("numbers", range(10))
        h.checkpoint()
        HEARD.clear()
        h.crash("second:0")
        assert ("closed", "first:0") in HEARD and ("closed", "second:1") in HEARD
        assert ("closed", "second:0") not in HEARD, "its process was killed"
        recovers = {entry[1]: entry[2] for entry in HEARD if entry[0] == "recovers"}
        assert recovers.keys() == {"first:0", "second:0", "second:1"}
        assert all("worker" in reason for reason in recovers.values())
        for name in recovers:
            order = [entry[0] for entry in HEARD if entry[1] == name]
            assert order[-2:] == ["opened", "recovers"]
        h.push("numbers", range(10))
        h.checkpoint()
        assert sorted(h.output("out")) == sorted([*range(10)] * 2)
        assert h.output("log") == ["recovered"] * 2


def test_a_run_that_begins_recovers_from_nothing() -> None:
    with testing.harness(two_operators()) as h:
        h.push("numbers", range(3))
    assert HEARD and all(entry[0] != "recovers" for entry in HEARD)


def test_an_error_while_an_operator_is_closed_does_not_stop_the_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = two_operators(fails=True)
    with testing.harness(pipeline, workers=4) as h:
        h.push("numbers", range(5))
        h.crash("second:0")
        h.push("numbers", range(5))
        h.checkpoint()
        assert sorted(h.output("out")) == sorted([*range(5)] * 2)
        assert "on_stop of 'first' failed" in caplog.text


class Unreliable(Holding):
    failed = False

    def process(self, record: int, ctx: es.Context) -> None:
        if record == 7 and not Unreliable.failed:
            Unreliable.failed = True
            raise ValueError("once")
        super().process(record, ctx)


@pytest.mark.parametrize("name", CHOICES)
def test_an_operator_that_failed_is_closed_too_under_every_protocol(name: str) -> None:
    Unreliable.failed = False
    pipeline = es.Pipeline("failing")
    numbers = pipeline.source(es.FromList([]), name="numbers").key_by(lambda n: n)
    numbers.process(Unreliable(), name="unreliable").sink(es.Collect(), name="out")
    with testing.harness(pipeline, checkpoint=CHOICES[name]) as h:
        h.push("numbers", range(10))
        kinds: list[Any] = [entry[0] for entry in HEARD]
        assert kinds == ["opened", "closed", "opened", "recovers"]
        assert "unreliable:0 failed" in HEARD[-1][2] or "numbers:0 failed" in HEARD[-1][2]
        h.checkpoint()
        assert sorted(h.output("out")) == list(range(10))
