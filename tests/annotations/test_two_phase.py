"""A last stage that writes to a database in two phases: each item once, whatever dies when."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import everstream as es
from everstream.annotations.two_phase import Abandoned, StageTransaction
from everstream.core.orders import Outcome
from everstream.simulation.faults import Faults
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World
from everstream.state.saved import dumps
from tests.annotations.simulating import function_of
from tests.connectors.postgres_server import PostgresServer, postgres_server
from tests.docs.simulated import Given

# A database in this process, for runs in virtual time.

PREPARED: dict[str, list[int]] = {}
TABLE: list[int] = []
CALLS: Counter[str] = Counter()


class Connection:
    def __init__(self) -> None:
        self.rows: list[int] = []


def connect() -> Connection:
    return Connection()


def prepare(name: str, connection: Connection) -> None:
    assert name not in PREPARED
    PREPARED[name], connection.rows = connection.rows, []
    CALLS["prepared"] += 1


def commit(name: str) -> None:
    TABLE.extend(PREPARED.pop(name, []))
    CALLS["committed"] += 1


def roll_back(dead: Callable[[str], bool]) -> None:
    for name in [name for name in PREPARED if dead(name)]:
        del PREPARED[name]
        CALLS["rolled back"] += 1


@es.annotated
def load(items):  # type: ignore[no-untyped-def]
    with es.ToStream():
        for n in items:
            with es.Stage(replicate=2):
                m = n * n
            with es.Stage(
                on_init=connect,
                before_snapshot=prepare,
                on_commit=commit,
                on_rollback=roll_back,
                name="load",
                replicate=2,
            ) as db:
                db.rows.append(m)


@pytest.fixture(autouse=True)
def empty() -> None:
    PREPARED.clear()
    TABLE.clear()
    CALLS.clear()


def check(protocol: str, seeds: range) -> None:
    recoveries = 0
    for seed in seeds:
        PREPARED.clear()
        TABLE.clear()
        given = load.pipeline(range(60))
        shape = Given("load", 3, lambda pipeline, world: None, dict, given=given)
        history = World(seed, shape, Faults(rotten_objects=0), scheme_for(protocol, seed)).run()
        assert history.outcome is Outcome.FINISHED, history.notes[-3:]
        assert sorted(TABLE) == [n * n for n in range(60)], f"{protocol}, seed {seed}"
        recoveries += history.recoveries
    assert recoveries and CALLS["rolled back"]


PROTOCOLS = ["aligned", "unaligned", "uncoordinated", "hmnr", "bcs"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_item_is_committed_once_after_any_faults(protocol: str) -> None:
    check(protocol, range(10))


@pytest.mark.long
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_item_is_committed_once_over_many_seeds(protocol: str) -> None:
    check(protocol, range(100, 400))


def test_a_plain_call_prepares_and_commits_once() -> None:
    load([1, 2, 3])
    assert TABLE == [1, 4, 9] and not PREPARED and CALLS == {"prepared": 1, "committed": 1}


def test_a_checkpoint_keeps_the_name_and_not_the_hook() -> None:
    saved = dumps(StageTransaction(3, "everstream/x/load/load/0/7/3").with_hook(commit))
    assert b"everstream/x/load/load/0/7/3" in saved and b"test_two_phase" not in saved


def test_only_names_of_this_shard_that_no_checkpoint_keeps_are_abandoned() -> None:
    dead = Abandoned("everstream/x/load/load/1/", {"everstream/x/load/load/1/7/3"})
    assert dead("everstream/x/load/load/1/6/2")
    assert not dead("everstream/x/load/load/1/7/3")
    assert not dead("everstream/x/load/load/11/6/2") and not dead("other")


def test_micro_batches_refuse_a_stage_whose_process_may_change() -> None:
    with pytest.raises(es.UserError, match="'load' prepares transactions that only its next"):
        load.pipeline([1]).run(engine="microbatch", store=None)


MISTAKES = {
    "prepared and never committed": ("before_snapshot=f", "belong together"),
    "committed and never prepared": ("on_commit=f", "belong together"),
    "rolled back and never prepared": ("on_rollback=f", "on_rollback without before_snapshot"),
    "with state": ("before_snapshot=f, on_commit=f, state=[total]", "has no state="),
    "with outputs": ("before_snapshot=f, on_commit=f, outputs=[n]", "has no outputs"),
    "with on_error": ("before_snapshot=f, on_commit=f, on_error='skip'", "has no on_error="),
    "with on_recover": ("before_snapshot=f, on_commit=f, on_recover=f", "has no on_recover="),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_committed_in_two_phases_is_refused(name: str) -> None:
    options, problem = MISTAKES[name]
    program = f"""
f = print
@es.annotated
def main(items):
    total = 0
    with es.ToStream():
        for n in items:
            with es.Stage({options}):
                total{"" if "state" in options else "_of_this"} = n
"""
    with pytest.raises(es.UserError, match=problem):
        function_of(program)


# A real database, and real processes that are killed.


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that prepares transactions for a second phase."""
    with postgres_server() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_prepared_transactions = 20")
        server.stop("fast")
        server.start()
        yield server


def run_against(dsn: str, store: Path, kills: list[str], items: int) -> es.RunResult:
    def connect() -> Any:
        return psycopg.connect(dsn)

    def prepare(name: str, db: Any) -> None:
        db.execute(f"PREPARE TRANSACTION '{name}'")

    def commit(name: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as db:
            if db.execute("SELECT 1 FROM pg_prepared_xacts WHERE gid = %s", [name]).fetchone():
                db.execute(f"COMMIT PREPARED '{name}'")

    def roll_back(dead: Callable[[str], bool]) -> None:
        with psycopg.connect(dsn, autocommit=True) as db:
            for (name,) in db.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                if dead(name):
                    db.execute(f"ROLLBACK PREPARED '{name}'")

    def close(db: Any) -> None:
        db.close()

    @es.annotated
    def loading(items):  # type: ignore[no-untyped-def]
        with es.ToStream():
            for n in items:
                with es.Stage(replicate=2):
                    m = n * n
                with es.Stage(
                    on_init=connect,
                    before_snapshot=prepare,
                    on_commit=commit,
                    on_rollback=roll_back,
                    on_exit=close,
                    name="load",
                ) as db:
                    db.execute("INSERT INTO squares VALUES (%s, %s)", (n, m))

    pipeline = loading.pipeline(range(items))
    every = es.Coordinated(every="0.1s")
    return pipeline.run(store=str(store), checkpoint=every, workers=3, kill=kills)


@pytest.mark.parametrize(
    "points",
    [
        ["before-snapshot", "in-snapshot", "after-snapshot"],
        ["after-prepare", "in-commit", "after-commit"],
    ],
)
def test_a_table_with_a_key_has_each_row_once_though_the_loader_is_killed(
    points: list[str], server: PostgresServer, tmp_path: Path
) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS squares")
        db.execute("CREATE TABLE squares (n bigint PRIMARY KEY, m bigint)")
    kills = [f"load@{point}" for point in points]
    result = run_against(server.dsn, tmp_path / "store", kills, 3_000)
    assert result.outcome is Outcome.FINISHED and result.recoveries
    with psycopg.connect(server.dsn, autocommit=True) as db:
        rows = db.execute("SELECT n, m FROM squares ORDER BY n").fetchall()
        left = db.execute("SELECT gid FROM pg_prepared_xacts").fetchall()
    assert rows == [(n, n * n) for n in range(3_000)]
    assert left == []
    assert os.path.isdir(tmp_path / "store")
