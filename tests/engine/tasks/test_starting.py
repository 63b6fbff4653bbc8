"""What cannot be reached while a run starts is tried again, up to a deadline that is named."""

from collections.abc import Iterator

import psycopg
import pytest

import everstream as es
from everstream.core.plan import make_plan, rescaled
from everstream.engine.availability.start_retry import LONGEST_PAUSE_S, StartRetry
from everstream.engine.reporting.listener import Listener
from everstream.errors import ConnectionLost, ConnectorError
from everstream.events import StartDelayed, StartReached
from tests.connectors.postgres_server import PostgresServer, postgres_server
from tests.engine.tasks.running import MASTER, Notes


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.at_s = 100.0
        self.pauses: list[float] = []

    def now_s(self) -> float:
        return self.at_s

    def sleep(self, time_s: float) -> None:
        self.pauses.append(time_s)
        self.at_s += time_s


def test_it_is_tried_again_with_growing_pauses_and_said_once() -> None:
    clock, notes, tries = Clock(), Notes(), list[int]()

    def work() -> str:
        tries.append(1)
        if len(tries) < 8:
            raise ConnectionLost("the database is away.")
        return "done"

    starting = StartRetry(60.0, notes, clock.now_s, clock.sleep)
    assert starting.reach(work) == "done"
    assert clock.pauses == sorted(clock.pauses) and clock.pauses[-1] == LONGEST_PAUSE_S
    assert notes.events == [
        StartDelayed("the database is away.", 60.0),
        StartReached(sum(clock.pauses)),
    ]


def test_the_deadline_is_named_when_it_has_passed() -> None:
    clock = Clock()

    def work() -> None:
        raise ConnectionLost("the database is away.")

    with pytest.raises(ConnectionLost, match=r"away\.\n.*start_timeout .* is 60 s") as caught:
        StartRetry(60.0, Notes(), clock.now_s, clock.sleep).reach(work)
    assert 50 < clock.at_s - 100 <= 60, caught.value


def test_what_will_not_pass_is_raised_at_once() -> None:
    def work() -> None:
        raise ConnectorError("wrong password")

    with pytest.raises(ConnectorError, match="wrong password"):
        StartRetry(60.0, Notes(), sleep=lambda time_s: pytest.fail("it waited")).reach(work)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One that a test may stop."""
    with postgres_server() as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("CREATE TABLE numbers (n integer PRIMARY KEY)")
            connection.execute("INSERT INTO numbers SELECT generate_series(1, 50)")
        yield server


class BringsItBack(Listener):
    """Starts the database again once it was missed."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.missed: list[str] = []

    def on_event(self, event: es.RunEvent) -> None:
        if isinstance(event, StartDelayed):
            self.missed.append(event.reason)
            self.server.start()


def copied(server: PostgresServer) -> es.Pipeline:
    pipeline = es.Pipeline("copied")
    pipeline.source(es.PostgresTable(server.dsn, "numbers", key="n")).collect()
    return pipeline


def test_a_database_that_is_away_while_the_run_starts_is_waited_for(
    server: PostgresServer,
) -> None:
    pipeline = copied(server)
    server.stop()
    listener = BringsItBack(server)
    result = pipeline.run(master=MASTER, listener=listener)
    assert sorted(row["n"] for row in result.collected()) == list(range(1, 51))
    assert any("cannot connect to the database" in reason for reason in listener.missed)


def test_a_database_that_does_not_come_back_or_does_not_want_us_ends_the_start(
    server: PostgresServer,
) -> None:
    stranger = es.Pipeline("stranger")
    nobody = f"{server.dsn} dbname=no_such_database"
    stranger.source(es.PostgresTable(nobody, "numbers", key="n")).collect()
    notes = Notes()
    with pytest.raises(ConnectorError, match="no_such_database"):
        stranger.run(master=MASTER, listener=notes)
    assert not notes.of(StartDelayed), "that is not tried again"
    pipeline = copied(server)
    server.stop()
    with pytest.raises(ConnectionLost, match=r"--start-timeout\) is 0.5 s"):
        pipeline.run(master=MASTER, listener=notes, start_timeout="500ms")


def test_numbers_of_shards_are_changed_while_a_database_is_away(server: PostgresServer) -> None:
    plan = make_plan(copied(server), 1)
    server.stop()
    changed = rescaled(plan, {"postgres_table": 3}, plan.key_groups)
    assert changed.chains["postgres_table"].shards == 3
