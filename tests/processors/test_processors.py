"""Spark's stateful processors as operators: the same output as a plain program, whatever fails."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.pipeline.stream import Pipeline
from everstream.processors.schemas import Fields, OutputColumns, schema_of
from tests.processors.programs import OUTPUT, Windows, WindowsInPandas, events, expected, in_order


def windows_of(processor: Any, shards: int = 2, **more: Any) -> Pipeline:
    pipeline = Pipeline("visits")
    visits = pipeline.source(es.FromList([]), name="visits").event_time("at", unit="ms")
    method = "transform_with_state"
    if isinstance(processor, WindowsInPandas):
        method += "_in_pandas"
    run = getattr(visits.key_by("user"), method)
    run(processor, OUTPUT, "EventTime", shards=shards, name="windows", **more).collect(name="out")
    return pipeline


@pytest.mark.parametrize("processor", [Windows(), WindowsInPandas()])
@pytest.mark.parametrize("as_columns", [False, True])
def test_a_processor_gives_what_a_plain_program_gives(processor: Any, as_columns: bool) -> None:
    visits = events(100)
    with testing.harness(windows_of(processor)) as h:
        for start in range(0, 100, 7):
            batch = visits[start : start + 7]
            h.push("visits", pl.DataFrame(batch) if as_columns else batch)
            if start == 49:
                h.checkpoint()
            if start == 70:
                h.crash("windows:0")
        assert sum(n for (n,) in h.state("windows", "total").values()) == len(visits)
        h.end()
        assert in_order(h.output("out")) == in_order(expected(visits))


@pytest.mark.parametrize("processor", [Windows(), WindowsInPandas()])
def test_faults_change_nothing(processor: Any) -> None:
    testing.check(windows_of(processor), {"visits": events(60)}, seeds=8)


@pytest.mark.long
@pytest.mark.parametrize(
    "protocol",
    [
        es.Coordinated(),
        es.Coordinated(mode="unaligned"),
        es.Uncoordinated(),
        es.CommunicationInduced(),
    ],
    ids=["aligned", "unaligned", "uncoordinated", "induced"],
)
def test_a_thousand_seeds_change_nothing(protocol: Any) -> None:
    testing.check(windows_of(Windows()), {"visits": events(60)}, seeds=250, checkpoint=protocol)


def test_an_upgrade_with_other_state_variables_is_refused() -> None:
    class Other(Windows):
        def init(self, handle: Any) -> None:
            super().init(handle)
            self.total = handle.getValueState("sum", "n bigint")

    Other.__name__ = "Windows"
    with testing.harness(windows_of(Windows())) as h:
        h.push("visits", events(3))
        h.checkpoint()
        with pytest.raises(UserError, match="sum"):
            h.restart(windows_of(Other()))


class Spent(StatefulProcessor):
    """State with a time to live."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n int", ttlDurationMs=10_000)
        self.list = handle.getListState("list", "n int", 10_000)
        self.map = handle.getMapState("map", "n int", "n int", 10_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in rows:
            state = [self.value.get(), list(self.list.get()), sorted(self.map.iterator())]
            if row.n == 1:
                self.value.update((row.n,))
            if row.n:
                self.list.appendValue((row.n,))
                self.map.updateValue((row.n,), (row.n * row.n,))
            yield Row(state=repr(state), exists=self.list.exists() and self.map.exists())

    def close(self) -> None:
        pass


def test_state_expires_entry_by_entry() -> None:
    pipeline = Pipeline("spent")
    keyed = pipeline.source(es.FromList([]), name="in").key_by("k")
    rows = keyed.transform_with_state(
        Spent(), "state string, exists boolean", "ProcessingTime", name="spent"
    )
    rows.collect(name="out")
    with testing.harness(pipeline) as h:
        h.push("in", [{"k": 1, "n": 1}])
        h.advance("6s")
        h.push("in", [{"k": 1, "n": 2}])
        h.checkpoint()
        h.crash("spent:0")
        h.push("in", [{"k": 1, "n": 0}])
        h.advance("6s")
        h.push("in", [{"k": 1, "n": 0}])
        h.checkpoint()
        before = [row["state"] for row in h.output("out")]
        assert before == [
            "[None, [], []]",
            "[(1,), [(1,)], [((1,), (1,))]]",
            "[(1,), [(1,), (2,)], [((1,), (1,)), ((2,), (4,))]]",
            "[None, [(2,)], [((2,), (4,))]]",
        ]
        h.advance("20s")
        assert not any(h.state("spent", name) for name in ("value", "list", "map"))


class Timed(StatefulProcessor):
    """Lists, moves and deletes timers of processing time."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            if row.after:
                self.handle.registerTimer(now + row.after)
            else:
                self.handle.deleteTimer(max(self.handle.listTimers()))
        yield Row(what="listed", n=len(list(self.handle.listTimers())))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        assert timerValues.getCurrentProcessingTimeInMs() >= at
        self.handle.registerTimer(at)  # Spark deletes it again after this call
        yield Row(what="fired", n=len(list(self.handle.listTimers())))

    def close(self) -> None:
        pass


def test_timers_are_listed_and_deleted_as_in_spark() -> None:
    pipeline = Pipeline("timed")
    keyed = pipeline.source(es.FromList([]), name="in").key_by("k")
    keyed.transform_with_state(Timed(), "what string, n int", "ProcessingTime", name="t").collect(
        name="out"
    )
    with testing.harness(pipeline) as h:
        h.push("in", [{"k": 1, "after": after} for after in (2_000, 4_000, 6_000)])
        h.push("in", [{"k": 1, "after": 0}])
        h.checkpoint()
        h.crash("t:0")
        h.advance("3s")
        h.advance("9s")
        h.checkpoint()
        found = [(row["what"], row["n"]) for row in h.output("out")]
        assert found == [("listed", 3), ("listed", 2), ("fired", 2), ("fired", 1)]


class Balance(StatefulProcessor):
    """Begins with an initial state."""

    def init(self, handle: Any) -> None:
        self.balance = handle.getValueState("balance", "cents bigint")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        cents = initialState.cents
        self.balance.update((int(cents.sum()) if isinstance(cents, pd.Series) else cents,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        (cents,) = self.balance.get() or (0,)
        for row in rows:
            if isinstance(row, pd.DataFrame):
                cents += int(row["cents"].sum())
            else:
                cents += row.cents
        self.balance.update((cents,))
        one = {"account": key[0], "branch": key[1], "cents": cents}
        yield pd.DataFrame([one]) if self.in_pandas else Row(**one)

    in_pandas = False

    def close(self) -> None:
        pass


class BalanceInPandas(Balance):
    in_pandas = True


@pytest.mark.parametrize("initial", ["polars", "pandas", "list"])
@pytest.mark.parametrize("in_pandas", [False, True])
def test_initial_state_is_handled_once_in_the_shard_of_its_key(
    initial: str, in_pandas: bool
) -> None:
    accounts = [{"account": n, "branch": "x", "cents": n * 100} for n in range(20)]
    given: Any = {"polars": pl.DataFrame, "pandas": pd.DataFrame, "list": list}[initial](accounts)
    pipeline = Pipeline("balances")
    keyed = pipeline.source(es.FromList([]), name="in").key_by("account", "branch")
    more: Any = {"initial_state": given, "name": "balance", "shards": 3}
    schema = "account bigint, branch string, cents bigint"
    if in_pandas:
        rows = keyed.transform_with_state_in_pandas(BalanceInPandas(), schema, **more)
    else:
        rows = keyed.transform_with_state(Balance(), schema, **more)
    rows.collect(name="out")
    payments = [{"account": n % 25, "branch": "x", "cents": 7} for n in range(50)]
    with testing.harness(pipeline) as h:
        h.push("in", payments[:25])
        h.checkpoint()
        h.crash("balance:1")
        h.push("in", payments[25:])
        h.end()
        last = {row["account"]: row["cents"] for row in h.output("out")}
    assert last == {n: (n * 100 if n < 20 else 0) + 14 for n in range(25)}


def test_records_that_are_late_are_left_out_and_can_be_had() -> None:
    pipeline = Pipeline("late")
    visits = pipeline.source(es.FromList([]), name="visits").event_time("at", unit="ms")
    out = visits.key_by("user").transform_with_state(Windows(), OUTPUT, "EventTime")
    out.collect(name="out")
    out.side_output("late").collect(name="late")
    visit = {"user": "ada", "page": "/"}
    with testing.harness(pipeline) as h:
        h.push("visits", [{**visit, "at": 20_000}])
        h.push("visits", [{**visit, "at": 19_999}])
        h.end()
        assert [row["kind"] for row in h.output("out")] == ["visit", "window"]
        assert [row["at"] for row in h.output("late")] == [19_999]


def test_an_error_leaves_the_rows_of_its_key_out() -> None:
    class Fragile(Windows):
        def visit(self, key: Any, at: int, page: str) -> Any:
            if page == "/1":
                raise ValueError("this page")
            yield from super().visit(key, at, page)

    visits = [{"user": f"u{n}", "page": f"/{n % 3}", "at": n} for n in range(9)]
    with testing.harness(windows_of(Fragile(), on_error="skip")) as h:
        h.push("visits", visits)
        h.end()
        users = {row["user"] for row in h.output("out")}
    assert users == {f"u{n}" for n in range(9) if n % 3 != 1}


class Wrong(StatefulProcessor):
    """Does what the test wants."""

    def __init__(self, init: Any = None, rows: Any = None) -> None:
        self._init, self._rows = init, rows

    def init(self, handle: Any) -> None:
        self.handle = handle
        if self._init is not None:
            self.state = self._init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self._rows(self, rows)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"processor": Windows}, "an instance of a subclass"),
        ({"processor": Windows(), "output_schema": "a strin"}, "'strin' is not a type"),
        ({"processor": Windows(), "output_schema": 7}, "as a StructType, or as a string"),
        ({"processor": Windows(), "output_schema": "a map<int, int>"}, "cannot be held exactly"),
        ({"processor": Windows(), "output_schema": "a int, a int"}, "the same name"),
        ({"processor": Windows(), "time_mode": "Event"}, "time_mode='Event' is not valid"),
        ({"processor": Windows(), "output_mode": "Complete"}, "use 'Append' or 'Update'"),
        ({"processor": Windows(), "time_mode": "EventTime"}, "put .event_time"),
        (
            {"processor": Wrong(lambda h: h.getValueState("n", "n int", 5))},
            "use time_mode='ProcessingTime'",
        ),
        ({"processor": Wrong(lambda h: h.getValueState("n", "n int").get())}, "is called in init"),
        ({"processor": Wrong(lambda h: h.registerTimer(5))}, "which needs a key"),
        (
            {"processor": Wrong(lambda h: [h.getValueState("n", "n int") for _ in "ab"])},
            "declared twice",
        ),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_defined(given: dict[str, Any], match: str) -> None:
    keyed = Pipeline("wrong").source(es.FromList([{"k": 1}])).key_by("k")
    given = {"output_schema": "a string", **given}
    with pytest.raises(UserError, match=match):
        keyed.transform_with_state(given.pop("processor"), given.pop("output_schema"), **given)


@pytest.mark.parametrize(
    ("init", "rows", "match"),
    [
        (
            None,
            lambda self, rows: [Row(a="x")],
            r"column 'a' is int, which does not hold 'x' \(str\)",
        ),
        (None, lambda self, rows: [Row(a=1 << 31)], "does not hold 2147483648"),
        (None, lambda self, rows: [Row(a=True)], r"does not hold True \(bool\)"),
        (None, lambda self, rows: [Row(b=1)], "has the columns a, and a Row has b"),
        (None, lambda self, rows: [(1, 2)], r"has 1 columns \(a\), and \(1, 2\) has 2 values"),
        (
            None,
            lambda self, rows: self.handle.registerTimer(5),
            "which time_mode='None' does not have",
        ),
        (
            lambda handle: handle.getValueState("n", "n double"),
            lambda self, rows: self.state.update((1,)),
            "state 'n' of Wrong: column 'n' is double, which does not hold 1",
        ),
        (
            lambda handle: handle.getValueState("n", "n double"),
            lambda self, rows: self.state.update(1.5),
            "give a tuple",
        ),
        (
            None,
            lambda self, rows: self.handle.getValueState("late", "n int"),
            "declare all state in init",
        ),
    ],
)
def test_values_that_would_change_are_refused(init: Any, rows: Any, match: str) -> None:
    keyed = Pipeline("wrong").source(es.FromList([]), name="in").key_by("k")
    out = keyed.transform_with_state(Wrong(init, rows), "a int")
    out.collect()
    with testing.harness(out.pipeline) as h, pytest.raises(es.EverstreamError, match=match):
        h.push("in", [{"k": 1}])


def test_schema_strings_are_read_as_spark_reads_them() -> None:
    text = (
        "id STRING NOT NULL, n: bigint COMMENT 'a, b', `odd ``name` decimal(10, 2), "
        "a array<struct<x: int, y: map<string, timestamp_ntz>>>, e struct<>"
    )
    found = schema_of(text, "it").jsonValue()["fields"]
    assert [(field["name"], field["nullable"]) for field in found] == [
        ("id", False), ("n", True), ("odd `name", True), ("a", True), ("e", True)
    ]  # fmt: skip
    assert schema_of(text, "it").simpleString() == (
        "struct<id:string,n:bigint,odd `name:decimal(10,2),"
        "a:array<struct<x:int,y:map<string,timestamp_ntz>>>,e:struct<>>"
    )


def test_columns_of_the_output_have_the_types_of_the_schema() -> None:
    schema = schema_of(
        "b boolean, i tinyint, f float, d decimal(5, 2), t timestamp, n timestamp_ntz, y date, "
        "s binary, a array<smallint>, r struct<x: int>",
        "it",
    )
    at = dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    columns = OutputColumns(schema, "it")
    naive = at.replace(tzinfo=None)
    row = (True, 7, 0.1, Decimal("1.5"), at, naive, naive.date(), b"x", [1, None], Row(x=3))
    frame = columns.frame([columns.values(row), columns.values((None,) * 10)])
    assert frame.dtypes == [
        pl.Boolean, pl.Int8, pl.Float32, pl.Decimal(5, 2), pl.Datetime("us", "UTC"),
        pl.Datetime("us"), pl.Date, pl.Binary, pl.List(pl.Int16), pl.Struct({"x": pl.Int32}),
    ]  # fmt: skip
    assert frame.row(0)[3:7] == (Decimal("1.50"), at, naive, naive.date())
    assert frame.row(0)[8:] == ([1, None], {"x": 3})
    assert Fields(schema, "it").values(row)[2] == pytest.approx(0.1, rel=1e-7)
