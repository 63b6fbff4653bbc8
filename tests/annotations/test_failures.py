"""Stages of annotated code hear of failures, their own and those of others, and release what they hold."""

import os
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream import testing
from tests.protocol_choices import CHOICES

CALLS: list[Any] = []


def opened() -> str:
    CALLS.append("opened")
    return "connection"


def closed(connection: str) -> None:
    CALLS.append(("closed", connection))


def recovers(reason: str, connection: str) -> None:
    CALLS.append(("recovers", reason, connection))


def briefly(reason: str) -> None:
    CALLS.append(("briefly", reason))


def silent() -> None:
    CALLS.append("silent")


@es.annotated
def main(items):  # type: ignore[no-untyped-def]
    total = 0
    with es.ToStream(batch=2):
        for n in items:
            with es.Stage(on_init=opened, on_exit=closed, on_recover=recovers):
                m = n + 1
            with es.Stage(on_recover=briefly, replicate=2):
                k = m * 2
            with es.Stage(state=[total], on_recover=silent, outputs=[k]):
                total += k
    return total


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


@pytest.mark.parametrize("name", CHOICES)
def test_stages_of_survivors_are_closed_and_hear_which_peer_was_killed(name: str) -> None:
    with testing.harness(main.pipeline([]), checkpoint=CHOICES[name], workers=4) as h:
        h.push("source", range(10))
        h.checkpoint()
        assert CALLS == ["opened"]
        CALLS.clear()
        h.push("source", range(10))
        h.crash("source:0")
        [(_, reason, connection)] = [c for c in CALLS if c[0] == "recovers"]
        assert "worker" in reason and connection == "connection"
        # With message logs, only the replica that had the records since the checkpoint rolls back.
        assert CALLS.count(("briefly", reason)) == (2 if name.endswith("aligned") else 1)
        assert CALLS.count("silent") == 1
        h.checkpoint()
        assert sorted(h.output("output")) == sorted([2 * (n + 1) for n in range(10)] * 2)


def test_a_stage_that_lives_on_while_a_peer_dies_closes_what_it_opened() -> None:
    with testing.harness(main.pipeline([]), workers=4) as h:
        h.push("source", range(4))
        CALLS.clear()
        h.crash("stage-2:1")
        assert CALLS[:1] == [("closed", "connection")]
        assert [c if isinstance(c, str) else c[0] for c in CALLS].count("opened") == 1
        h.push("source", range(4))
        h.checkpoint()
        assert sorted(h.output("output")) == sorted([2 * (n + 1) for n in range(4)] * 2)


def test_a_plain_call_recovers_from_nothing() -> None:
    assert main(range(4)) == 20
    assert CALLS == ["opened", ("closed", "connection")]


def test_real_processes_hear_of_a_peer_that_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def note(*what: Any) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {' '.join(what)}\n")

    def opened() -> int:
        note("opened")
        return os.getpid()

    def closed(opener: int) -> None:
        note("closed", str(opener))

    def recovers(reason: str) -> None:
        note("recovers", reason)

    @es.annotated
    def summed(items):  # type: ignore[no-untyped-def]
        total = 0
        with es.ToStream():
            for n in items:
                with es.Stage(on_init=opened, on_exit=closed, on_recover=recovers):
                    m = n + 1
                with es.Stage(replicate=2, name="middle"):
                    k = m * 2
                with es.Stage(state=[total]):
                    total += k
        return total

    result = summed.pipeline(range(30_000)).run(
        store=str(tmp_path / "store"),
        workers=4,
        checkpoint=es.Coordinated(every="0.05s"),
        kill=["middle:1@5000"],
    )
    assert result.returned == 2 * sum(range(1, 30_001))
    assert result.recoveries
    lines = log.read_text().splitlines()
    (survivor,) = {line.split()[0] for line in lines}
    events = [line.split()[1] for line in lines]
    assert events == ["opened", "closed", "opened", "recovers", "closed"]
    assert f"{survivor} closed {survivor}" in lines
    assert "middle" in lines[3] or "worker" in lines[3]
