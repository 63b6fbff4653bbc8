"""Deduplication against a plain sequential program, with keys of every kind."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream import testing
from everstream.core.upgrade.compatibility import UpgradeOverrides
from everstream.errors import UserError
from everstream.pipeline.operator import Context
from everstream.pipeline.operators.deduplicate import Deduplicate
from everstream.pipeline.operators.key_table import KeyTable, key_codes
from everstream.pipeline.stream import Pipeline, Stream
from everstream.pipeline.times import TimeOf
from everstream.state.backends.memory import MemoryBackend
from tests.pipeline.sim import rows_source
from tests.simulation.changing import Build, Changing

QUICK = settings(max_examples=40, suppress_health_check=list(HealthCheck))


def at_work(within_us: int | None) -> tuple[Deduplicate, Context]:
    operator = Deduplicate(["k"], within_us, None if within_us is None else TimeOf("t", "us"))
    ctx = Context("first", 0, 1, MemoryBackend())
    operator.on_start(ctx)
    return operator, ctx


def passed(ctx: Context) -> list[Any]:
    return [row for _, batch in ctx.take_emitted() for row in batch.rows()]


@QUICK
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400_000)), min_size=1)),
    st.sampled_from([None, 1, 100_000, 300_000]),
    st.lists(st.integers(0, 300_000), min_size=1),
    st.sets(st.integers(0, 9)),
)
def test_what_passes_is_what_a_sequential_program_lets_pass(
    batches: list[list[tuple[int, int]]],
    within: int | None,
    steps: list[int],
    restarts: set[int],
) -> None:
    operator, ctx = at_work(within)
    until: dict[int, float] = {}
    expected, now = [], 0
    for number, batch in enumerate(batches):
        rows = [(k, now + t) for k, t in batch]
        for k, t in rows:
            if t >= until.get(k, -1):
                expected.append((k, t))
                until[k] = float("inf") if within is None else t + within
        operator.process_batch(pl.DataFrame(rows, schema=["k", "t"], orient="row"), ctx)
        now += steps[number % len(steps)]
        ctx.watermark = now
        operator.on_watermark(now, ctx)
        if number in restarts:
            operator.on_start(ctx)
    assert passed(ctx) == expected
    operator.on_watermark(es.END_OF_TIME, ctx)
    assert within is None or not ctx.state.keys()


def test_a_key_that_passes_many_times_in_a_batch_passes_at_the_right_times() -> None:
    operator, ctx = at_work(3)
    operator.process_batch(pl.DataFrame({"k": [1] * 100, "t": range(100)}), ctx)
    assert [t for _, t in passed(ctx)] == [*range(0, 100, 3)]


NAN = float("nan")
EQUAL: list[list[Any]] = [
    [pl.Series([1, 2]), pl.Series([1.0, 2.5]), pl.Series([True, False])],
    [pl.Series([1, 2], dtype=pl.UInt64), pl.Series([Decimal("1.0"), Decimal("2.5")])],
    [pl.Series([NAN, None]), pl.Series([NAN, 0.0]), pl.Series([None, None])],
    [pl.Series(["a", "b"]), pl.Series(["b", "c"], dtype=pl.Categorical)],
    [pl.Series([b"a", b"b"]), pl.Series(["a", "b"])],
    [pl.Series([2**63, 2**64 - 1], dtype=pl.UInt64), pl.Series([-(2**63), -1])],
    [pl.Series([2.0**63, 0.5]), pl.Series([2**63, 2**62], dtype=pl.UInt64)],
    [pl.Series([date(2024, 1, 1)]), pl.Series([19723])],
    [pl.Series([datetime(2024, 1, 1)]), pl.Series([datetime(2024, 1, 1)]).dt.cast_time_unit("ms")],
    [pl.Series([timedelta(1), timedelta(2)]), pl.Series([{"a": 1, "b": "x"}, {"a": 1, "b": "y"}])],
    [pl.Series([{"a": 1, "b": 2}, None]), pl.Series([{"a": 1.0, "b": 2.5}, {"a": None, "b": 2.0}])],
    [pl.Series([0.5]), pl.Series(np.array([0.5]).view(np.int64))],
    [pl.Series([2**100], dtype=pl.Int128), pl.Series([2.0**100])],
]


@pytest.mark.parametrize("columns", EQUAL)
def test_keys_are_one_key_if_python_finds_them_equal(columns: list[pl.Series]) -> None:
    values = [value for column in columns for value in column.to_list()]
    kept: list[Any] = []
    for value in values:
        key = "nan" if value != value else value
        if not any(key == other and (key is None) == (other is None) for other in kept):
            kept.append(key)
    table = KeyTable(-1)
    for column in columns:
        table.values[table.places(*key_codes(column.alias("k").to_frame()))] = 1
    assert len(table) == len(kept)


def test_keys_of_several_columns_are_told_apart() -> None:
    rows = pl.DataFrame({"a": [1, 2, 1, 1, None], "b": ["x", "x", "y", "x", "x"]})
    table = KeyTable(-1)
    places = table.places(*key_codes(rows)).tolist()
    assert len(table) == 4 and places[0] == places[3]
    assert len(set(table.places(*key_codes(rows.rename({"a": "b", "b": "a"}))).tolist())) == 4


def test_the_table_grows_and_forgets_what_is_over() -> None:
    table, live = KeyTable(0), 0
    table.keep(lambda until: until > live)
    for start in range(0, 1_000_000, 10_000):
        keys = pl.DataFrame({"k": range(start, start + 10_000)})
        places = table.places(*key_codes(keys))
        table.values[places] = start + 1
        live = start - 50_000
    assert len(table) < 300_000
    keys = pl.DataFrame({"k": range(950_000, 1_000_000)})
    assert (table.values[table.places(*key_codes(keys))] > 0).all()


def clicks(**more: Any) -> Pipeline:
    pipeline = Pipeline("clicks")
    timed = pipeline.source(es.FromList([{"id": 1, "at": 0}]), name="clicks")
    more = {"within": "10s", **more}
    timed.event_time("at", unit="s").deduplicate("id", name="first", **more).collect(name="out")
    return pipeline


def test_a_key_that_has_passed_is_dropped_after_a_crash_and_passes_when_it_is_over() -> None:
    with testing.harness(clicks()) as h:
        h.push("clicks", [{"id": 1, "at": 0}, {"id": 2, "at": 1}, {"id": 1, "at": 2}])
        h.checkpoint()
        h.crash("first:0")
        h.push("clicks", [{"id": 1, "at": 9}, {"id": 1, "at": 10}, {"id": 2, "at": 10}])
        h.push("clicks", [{"id": 3, "at": 4}])
        assert h.late("first") == [{"id": 3, "at": 4}]
        h.end()
        assert [(row["id"], row["at"]) for row in h.output("out")] == [(1, 0), (2, 1), (1, 10)]


def test_without_event_time_the_clock_counts() -> None:
    pipeline = Pipeline("clicks")
    source = pipeline.source(es.FromList([{"id": 1}]), name="clicks")
    source.deduplicate("id", within="10s", name="first").collect(name="out")
    with testing.harness(pipeline) as h:
        h.push("clicks", [{"id": 1}, {"id": 1}])
        h.checkpoint()
        h.advance("9s")
        h.crash("first:0")
        h.push("clicks", [{"id": 1}])
        assert len(h.output("out")) == 1 and not h.uncommitted("out")
        h.advance("2s")
        h.push("clicks", [{"id": 1}])
        h.checkpoint()
        assert len(h.output("out")) == 2
        h.advance("30s")
        assert not h.state("first")
        h.end()


@pytest.mark.parametrize(
    ("on", "more", "problem"),
    [
        ([], {}, "the name of a column"),
        ("id", {"within": 0}, "more than 0"),
        ("id", {"time": "both"}, "'event' or 'processing'"),
        ("id", {"within": "1s", "time": "event"}, "event_time"),
    ],
)
def test_what_makes_no_sense_is_refused(on: Any, more: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        Pipeline("test").source(es.FromList([{"id": 1}])).deduplicate(on, **more)


RECORDS, KEYS = 300, 12


def first(within: int) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        rows = pl.DataFrame({"t": range(RECORDS)}).with_columns(k=pl.col("t") % KEYS)
        timed = pipeline.source(rows_source(rows, 3), name="rows").event_time("t", unit="s")
        out = timed.deduplicate("k", within=within, name="first", shards=2)
        return out.map(lambda row: row["t"], name="times")

    return build


def test_a_later_version_may_forget_sooner_and_not_later() -> None:
    stopped = Changing(first(100)).stop_at(3)
    read = stopped.read_by("rows")
    with pytest.raises(UserError, match="within_us: 100000000 is now 200000000"):
        stopped.change(first(200))
    stopped.change(first(40))
    assert stopped.notes[0].endswith("keys are kept for 40 s instead of 100 s")
    passes: dict[int, int] = {}
    expected = []
    for t in range(RECORDS):
        within = 100 if t < read else 40
        if t - passes.get(t % KEYS, -1000) >= within:
            expected.append(t)
            passes[t % KEYS] = t
    assert sorted(stopped.finish()) == expected
    stopped = Changing(first(100)).stop_at(3)
    stopped.change(first(200), UpgradeOverrides(dropped=frozenset({"first"})))
    assert stopped.finish()


def test_times_may_be_datetimes() -> None:
    rows = [
        {"id": 1, "at": datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=s)} for s in (0, 5, 10)
    ]
    pipeline = Pipeline("dates")
    pipeline.source(es.FromList(rows)).event_time("at").deduplicate("id", within="10s").collect()
    assert [row["at"].second for row in pipeline.run(engine="local").collected()] == [0, 10]
