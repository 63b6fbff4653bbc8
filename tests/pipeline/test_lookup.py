"""Lookups: each key of a batch is asked about once, and what is kept is part of the checkpoint."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream import testing
from everstream.errors import EverstreamError, UserError
from everstream.pipeline.operator import Context
from everstream.pipeline.operators.lookup import Lookup
from everstream.pipeline.stream import Pipeline, Stream
from everstream.state.backends.memory import MemoryBackend

CITY = {"city": pl.String()}


class Asked:
    """Answers for even ids, which tell how often the key was asked about; remembers the questions."""

    def __init__(self) -> None:
        self.questions: list[list[Any]] = []

    def __call__(self, keys: pl.DataFrame) -> pl.DataFrame:
        self.questions.append(keys["id"].to_list())
        times = sum(map(len, self.questions))
        return keys.filter(pl.col("id") % 2 == 0).with_columns(city=pl.lit(f"after {times}"))


def at_work(
    refresh_s: float | None, most: int = 100, inner: bool = False, cache: int | None = None
) -> tuple[Any, ...]:
    clock, asked = [100.0], Asked()
    refresh_us = None if refresh_s is None else int(refresh_s * 1e6)
    operator = Lookup(asked, ["id"], CITY, inner, refresh_us, cache, most)
    ctx = Context("city", 0, 1, MemoryBackend(), clock_s=lambda: clock[0])
    operator.on_start(ctx)

    def look_up(ids: list[Any]) -> list[Any]:
        operator.process_batch(pl.DataFrame({"id": ids, "n": range(len(ids))}), ctx)
        return [row for _, batch in ctx.take_emitted() for row in batch.rows()]

    return operator, ctx, clock, asked, look_up


def test_each_key_of_a_batch_is_asked_about_once_and_rows_stay_in_order() -> None:
    _, _, _, asked, look_up = at_work(None)
    found = look_up([4, 1, 4, None, 2])
    assert asked.questions == [[4, 1, 2]]
    assert found == [
        (4, 0, "after 3"),
        (1, 1, None),
        (4, 2, "after 3"),
        (None, 3, None),
        (2, 4, "after 3"),
    ]


def test_no_more_keys_are_asked_about_at_once_than_wanted() -> None:
    _, _, _, asked, look_up = at_work(None, most=2, inner=True)
    assert [row[0] for row in look_up([1, 2, 3, 4, 5])] == [2, 4]
    assert asked.questions == [[1, 2], [3, 4], [5]]


def test_answers_are_kept_for_a_while_also_that_there_is_none() -> None:
    operator, ctx, clock, asked, look_up = at_work(10)
    first = look_up([2, 3])
    clock[0] = 105
    look_up([4])
    assert look_up([3, 2]) == [(3, 0, None), (2, 1, first[0][2])]
    clock[0] = 110.5
    assert look_up([2, 4]) == [(2, 0, "after 4"), (4, 1, "after 3")]
    assert asked.questions == [[2, 3], [4], [2]]
    operator.on_wake(200.0, ctx)
    assert not ctx.state.keys()


def test_a_restart_asks_nothing_again_that_a_checkpoint_has_the_answer_to() -> None:
    operator, ctx, _, asked, look_up = at_work(10)
    first = look_up([2])
    operator.on_start(ctx)
    assert look_up([2]) == first and len(asked.questions) == 1


def test_no_more_answers_are_kept_than_wanted_and_the_oldest_go_first() -> None:
    operator, ctx, clock, asked, look_up = at_work(None, cache=2)
    assert [row[2] for row in look_up([2, 4, 6])] == ["after 3"] * 3
    clock[0] = 1e9
    look_up([4, 6])
    assert asked.questions == [[2, 4, 6]], "the last two are kept, however old they are"
    look_up([8])
    assert operator.answers.rows == 2
    look_up([6, 8, 4])
    assert asked.questions == [[2, 4, 6], [8], [4]]
    operator.on_start(ctx)
    look_up([8, 4])
    assert len(asked.questions) == 3


def test_a_table_that_changes_is_asked_again_and_a_replay_gives_the_same_answers() -> None:
    cities = {1: "Rome"}

    def now(keys: pl.DataFrame) -> pl.DataFrame:
        return keys.with_columns(city=pl.lit(cities[1]))

    pipeline = Pipeline("changing")
    source = pipeline.source(es.FromList([]), name="orders")
    source.lookup(now, on="id", schema=CITY, refresh="10m", name="city").collect(name="out")
    with testing.harness(pipeline) as h:
        h.push("orders", [{"id": 1, "n": 1}])
        h.checkpoint()
        cities[1] = "Oslo"
        h.advance("9m")
        h.push("orders", [{"id": 1, "n": 2}])
        h.crash("city:0")  # this record comes again
        assert [row["city"] for row in h.uncommitted("out")] == ["Rome"]
        h.advance("1m")
        h.push("orders", [{"id": 1, "n": 3}])
        h.end()
        assert [row["city"] for row in h.output("out")] == ["Rome", "Rome", "Oslo"]


def orders(**more: Any) -> Stream:
    rows = [{"id": n % 5, "order": n} for n in range(50)]
    source = Pipeline("orders").source(es.FromList(rows, batch=7), name="orders")
    return source.lookup(more.pop("table", _cities), on="id", **{"schema": CITY, **more})


def _cities(keys: pl.DataFrame) -> pl.DataFrame:
    return keys.filter(pl.col("id") < 3).with_columns(city=pl.format("city {}", "id"))


@pytest.mark.parametrize("keep", [{}, {"refresh": "1m"}, {"cache": 2}])
def test_a_run_with_two_shards_adds_the_right_values(keep: Any) -> None:
    result = orders(**keep, shards=2).collect(name="out").run(engine="local")
    found = sorted(result.to_polars("out").select("order", "city").rows())
    assert found == [(n, f"city {n % 5}" if n % 5 < 3 else None) for n in range(50)]


def test_in_a_harness_the_answer_of_the_checkpoint_counts_after_a_crash() -> None:
    stream = orders(refresh="1m", name="city")
    stream.collect(name="out")
    with testing.harness(stream.pipeline) as h:
        h.push("orders", [{"id": 1, "order": 1}, {"id": 4, "order": 2}])
        h.checkpoint()
        h.crash("city:0")
        h.push("orders", [{"id": 1, "order": 3}])
        h.end()
        rows = [(row["order"], row["city"]) for row in h.output("out")]
        assert rows == [(1, "city 1"), (2, None), (3, "city 1")]


def test_a_sqlite_table_is_asked_by_one_column_or_several(tmp_path: Path) -> None:
    path = tmp_path / "customers.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute('create table customers (id integer, "b c" text, city text)')
        given = [(1, "x", "Rome"), (2, "x", "Oslo"), (2, "y", None)]
        database.executemany("insert into customers values (?, ?, ?)", given)
        database.commit()
    rows = [{"id": n, "b c": c} for n in (1, 2, 3) for c in "xy"]
    source = Pipeline("orders").source(es.FromList(rows))
    table = es.SqliteTable(path, "customers")
    found = source.lookup(table, on=["id", "b c"], schema=CITY).collect().run(engine="local")
    cities = {(1, "x"): "Rome", (2, "x"): "Oslo"}
    assert found.to_polars().rows() == [
        (row["id"], row["b c"], cities.get((row["id"], row["b c"]))) for row in rows
    ]


def test_parquet_files_know_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "cities.parquet"
    pl.DataFrame({"id": [0, 1], "city": ["Rome", "Oslo"], "size": [3, 1]}).write_parquet(path)
    stream = orders(table=path, schema=None, how="inner")
    frame = stream.collect().run(engine="local").to_polars()
    assert frame.schema["size"] == pl.Int64
    assert sorted(frame["order"]) == [n for n in range(50) if n % 5 < 2]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (lambda keys: keys, "returned the columns id instead of id, city"),
        (lambda keys: {"id": 1}, "returned dict"),
        (lambda keys: keys.with_columns(city=pl.lit(1)), "does not fit: column 'city'"),
        (
            lambda keys: pl.concat([keys, keys]).with_columns(city=pl.lit("x")),
            r"several rows for \{'id': 0\}",
        ),
    ],
)
def test_wrong_answers_are_refused(table: Any, problem: str) -> None:
    with pytest.raises(EverstreamError, match=problem):
        orders(table=table).collect().run(engine="local", max_restarts=0)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"schema": None}, "schema="),
        ({"table": 7}, "takes a function"),
        ({"how": "full"}, "'inner' or 'left'"),
        ({"refresh": 0}, "more than 0"),
        ({"cache": 0}, "from 1 up"),
        ({"cache": "10m"}, "refresh='10m'"),
        ({"batch": 0}, "from 1 up"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(more: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        orders(**more)
