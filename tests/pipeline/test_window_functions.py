"""Ranks, neighbours, the best and running aggregates, within windows and without, against plain programs."""

from decimal import Decimal
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.pipeline.stream import Pipeline, Stream
from tests.pipeline.sim import rows_source
from tests.simulation.changing import Build, Changing

ROWS = [
    {"item": "a", "at": 3, "price": 5},
    {"item": "a", "at": 1, "price": 9},
    {"item": "b", "at": 2, "price": 4},
    {"item": "a", "at": 7, "price": 5},
    {"item": "a", "at": 12, "price": 1},
    {"item": "a", "at": 8, "price": None},
]


def source(rows: list[Any]) -> Stream:
    return Pipeline("test").source(es.FromList(rows)).event_time("at", unit="s", lateness="5s")


def results(rows: list[Any], **columns: Any) -> list[Any]:
    windows = source(rows).key_by("item").window(es.Tumbling("10s"))
    frame = windows.with_columns(**columns).collect().run(engine="local").to_polars()
    return frame.sort("item", "at").select("item", "at", *columns).rows()


def test_each_record_is_placed_among_those_of_its_key_and_window() -> None:
    found = results(
        ROWS,
        place=es.rank("price"),
        best=es.rank("price", descending=True, method="min"),
        dense=es.rank("price", descending=True, method="dense"),
        mean=es.rank("price", method="average"),
    )
    assert found == [
        ("a", 1, 3, 1, 1, 3.0),
        ("a", 3, 1, 2, 2, 1.5),
        ("a", 7, 2, 2, 2, 1.5),
        ("a", 8, None, None, None, None),
        ("a", 12, 1, 1, 1, 1.0),
        ("b", 2, 1, 1, 1, 1.0),
    ]


def test_neighbours_are_those_in_time() -> None:
    found = results(ROWS, before=es.lag("at"), before_that=es.lag("at", 2), after=es.lead("price"))
    assert found == [
        ("a", 1, None, None, 5),
        ("a", 3, 1, None, 5),
        ("a", 7, 3, 1, None),
        ("a", 8, 7, 3, None),
        ("a", 12, None, None, None),
        ("b", 2, None, None, None),
    ]


def test_aggregates_run_within_the_window() -> None:
    found = results(
        ROWS,
        n=es.cumulative(es.count()),
        total=es.cumulative(es.sum("price")),
        mean=es.cumulative(es.avg("price")),
        high=es.cumulative(es.max("price")),
        low=es.cumulative(es.min("price")),
    )
    assert found == [
        ("a", 1, 1, 9, 9.0, 9, 9),
        ("a", 3, 2, 14, 7.0, 9, 5),
        ("a", 7, 3, 19, 19 / 3, 9, 5),
        ("a", 8, 4, 19, 19 / 3, 9, 5),
        ("a", 12, 1, 1, 1.0, 1, 1),
        ("b", 2, 1, 4, 4.0, 4, 4),
    ]


def test_running_sums_are_exact() -> None:
    rows = [{"item": 1, "at": n, "price": Decimal("0.1")} for n in range(3)]
    assert results(rows, total=es.cumulative(es.sum("price")))[-1][2] == Decimal("0.3")
    rows = [{"item": 1, "at": n, "price": 2**62} for n in range(3)]
    assert results(rows, total=es.cumulative(es.sum("price")))[-1][2] == 3 * 2**62


def test_a_window_comes_out_once_and_late_records_at_the_side() -> None:
    pipeline = Pipeline("best")
    timed = pipeline.source(es.FromList(ROWS), name="prices").event_time("at", unit="s")
    windows = timed.key_by("item").window(es.Tumbling("10s"))
    places = windows.with_columns(place=es.rank("price", descending=True), name="ranked")
    places.filter(pl.col("place") == 1).collect(name="best")
    with testing.harness(pipeline) as h:
        h.push("prices", [{"item": "a", "at": 1, "price": 5}, {"item": "a", "at": 2, "price": 7}])
        h.watermark("prices", 9)
        h.checkpoint()
        h.crash("ranked:0")
        assert not h.uncommitted("best")
        h.watermark("prices", 10)
        assert [row["price"] for row in h.uncommitted("best")] == [7]
        h.checkpoint()
        h.crash("ranked:0")
        h.push("prices", [{"item": "a", "at": 9, "price": 8}])
        assert [row["price"] for row in h.late("ranked")] == [8]
        assert not [k for k in h.state("ranked") if isinstance(k, tuple)]
        h.end()
        assert [row["price"] for row in h.output("best")] == [7]


def test_without_a_key_the_window_is_one() -> None:
    windows = source(ROWS).window(es.Sliding("10s", every="5s"))
    ranked = windows.with_columns(place=es.rank("price")).collect().run(engine="local").to_polars()
    assert len(ranked) == 2 * len(ROWS)
    assert ranked.filter(window_start=0).sort("place", "at").select("price", "place").rows() == [
        (None, None),
        (4, 1),
        (5, 2),
        (5, 3),
        (9, 4),
    ]


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (
            lambda s: s.window(es.Session("1s")).with_columns(n=es.rank("x")),
            "tumbling, sliding or calendar",
        ),
        (lambda s: s.window(es.Tumbling("1s")).with_columns(), "takes es.rank"),
        (lambda s: s.window(es.Tumbling("1s")).with_columns(n=pl.col("x")), "takes es.rank"),
        (lambda s: s.window(es.Tumbling("1s")).with_columns(n=es.lag("x"), shards=2), "one shard"),
        (
            lambda s: s.key_by(lambda r: 1).window(es.Tumbling("1s")).with_columns(n=es.lag("x")),
            "keys that are columns",
        ),
        (lambda s: es.lag("x", 0), "from 1 up"),
        (lambda s: s.window(es.Tumbling("1s")).top_k("x", by="price"), r"aggregate\(top=es.top_k"),
        (lambda s: s.window(es.Tumbling("1s")).top_k(0, by="x"), "how many records"),
        (lambda s: s.window(es.Tumbling("1s")).top_k(2, by=[]), "name of a column"),
        (lambda s: s.window(es.Tumbling("1s")).top_k(2, by="x", reverse=[True, True]), "one value"),
        (lambda s: s.window(es.Session("1s")).top_k(2, by="x"), "tumbling, sliding"),
        (lambda s: s.key_by("item").with_columns(pl.col("at"), n=es.lag("at")), "but not both"),
        (lambda s: s.key_by(lambda r: 1).with_columns(n=es.lag("x")), "keys that are columns"),
        (
            lambda s: s.key_by("item").with_columns(n=es.lead("at")).window(es.Tumbling("1s")),
            "cannot follow es.lead",
        ),
        (lambda s: s.key_by("item").with_columns(n=es.lag("prize")), "no column 'prize'"),
        (lambda s: s.window(es.Tumbling("1s")).top_k(1, by="prize"), "no column 'prize'"),
        (lambda s: es.rank(pl.col("x")), "name of a column"),
        (lambda s: es.rank("x", method="best"), "method='best'"),
        (lambda s: es.cumulative(es.top_k("x", 2)), r"give es.count\(\)"),
    ],
)
def test_what_makes_no_sense_is_refused(build: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        build(source(ROWS))


# The best of each window.


def best_of(rows: list[Any], k: int, **how: Any) -> list[Any]:
    windows = source(rows).key_by("item").window(es.Tumbling("10s"))
    frame = windows.top_k(k, **how).collect().run(engine="local").to_polars()
    assert frame.schema["price"] == pl.Int64
    return (
        frame.sort("item", "window_start", maintain_order=True)
        .select("item", "at", "price", "window_start")
        .rows()
    )


def test_the_best_records_of_a_window_come_out_best_first() -> None:
    assert best_of(ROWS, 2, by="price") == [
        ("a", 1, 9, 0),
        ("a", 3, 5, 0),
        ("a", 12, 1, 10),
        ("b", 2, 4, 0),
    ]
    assert best_of(ROWS, 2, by=["price", "at"], reverse=[True, False])[:2] == [
        ("a", 7, 5, 0),
        ("a", 3, 5, 0),
    ]
    assert [row[1] for row in best_of(ROWS, 9, by="price")[:4]] == [1, 3, 7, 8], "nulls come last"


def test_only_the_best_are_kept_and_come_out_once() -> None:
    pipeline = Pipeline("best")
    timed = pipeline.source(es.FromList([]), name="prices").event_time("at", unit="s")
    timed.key_by("item").window(es.Tumbling("10s")).top_k(1, by="price", name="top").collect(
        name="best"
    )
    with testing.harness(pipeline) as h:
        h.push("prices", [{"item": "a", "at": n, "price": n} for n in range(8)])
        h.checkpoint()
        h.crash("top:0")
        kept = [rows for key, rows in h.state("top").items() if isinstance(key, tuple)]
        assert sum(map(len, kept)) == 1
        h.push("prices", [{"item": "a", "at": 9, "price": 3}])
        h.end()
        assert [(r["at"], r["price"]) for r in h.output("best")] == [(7, 7)]


# Without a window.

BIDS = [
    {"item": key, "price": price, "n": n}
    for n, (key, price) in enumerate(
        (key, price) for price in (5, None, 3, 9, 5, 5, 1) for key in ("a", "b", None)
    )
]


def of_the_key(**columns: Any) -> list[Any]:
    keyed = Pipeline("running").source(es.FromList(BIDS, batch=4)).key_by("item")
    frame = keyed.with_columns(**columns, shards=2).collect().run(engine="local").to_polars()
    assert frame.columns == ["item", "price", "n", *columns]
    return frame.filter(item="a").sort("n").select(*columns).rows()


def test_each_record_is_placed_among_those_of_its_key_so_far() -> None:
    found = of_the_key(
        place=es.rank("price"),
        best=es.rank("price", descending=True, method="min"),
        dense=es.rank("price", method="dense"),
        most=es.rank("price", method="max", descending=True),
        mean=es.rank("price", method="average"),
    )
    assert found == [
        (1, 1, 1, 1, 1.0),
        (None, None, None, None, None),
        (1, 2, 1, 2, 1.0),
        (3, 1, 3, 1, 3.0),
        (3, 2, 2, 3, 2.5),
        (4, 2, 2, 4, 3.0),
        (1, 6, 1, 6, 1.0),
    ]
    assert [type(value) for value in found[0]] == [int, int, int, int, float]


def test_neighbours_and_sums_are_those_of_the_key_in_order_of_arrival() -> None:
    found = of_the_key(
        before=es.lag("price"),
        before_that=es.lag("n", 2),
        after=es.lead("n", 2),
        total=es.cumulative(es.sum("price")),
        bids=es.cumulative(es.count("price")),
    )
    assert found == [
        (None, None, 6, 5, 1),
        (5, None, 9, 5, 1),
        (None, 0, 12, 8, 2),
        (3, 3, 15, 17, 3),
        (9, 6, 18, 22, 4),
        (5, 9, None, 27, 5),
        (5, 12, None, 28, 6),
    ]


def test_a_record_waits_for_the_next_of_its_key_through_a_crash() -> None:
    pipeline = Pipeline("next")
    keyed = pipeline.source(es.FromList([]), name="bids").key_by("item")
    keyed.with_columns(after=es.lead("price"), name="next").collect(name="out")
    with testing.harness(pipeline) as h:
        h.push("bids", [{"item": 1, "price": 5}, {"item": 2, "price": 7}])
        h.checkpoint()
        assert not h.output("out")
        h.crash("next:0")
        h.push("bids", [{"item": 1, "price": 6}])
        assert h.uncommitted("out") == [{"item": 1, "price": 5, "after": 6}]
        h.end()
        rows = [(row["item"], row["price"], row["after"]) for row in h.output("out")]
        assert sorted(rows) == [(1, 5, 6), (1, 6, None), (2, 7, None)]


def test_expressions_of_the_record_need_no_state() -> None:
    keyed = Pipeline("plain").source(es.FromList(BIDS)).key_by("item")
    rows = keyed.with_columns(pl.col("n") + 1, twice=pl.col("n") * 2).collect()
    assert rows.run(engine="local").to_polars().row(2) == (None, 5, 3, 4)


# Upgrades.

RECORDS = 240


def ranked(size: str, **columns: Any) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        rows = pl.DataFrame({"t": range(RECORDS)}).with_columns(k=pl.col("t") * 7 % 5)
        timed = pipeline.source(rows_source(rows, 3), name="rows").event_time("t", unit="s")
        windows = timed.key_by("k").window(es.Tumbling(size))
        out = windows.with_columns(name="ranked", shards=2, **columns)
        return out.map(lambda row: tuple(row.values()), name="tuples")

    return build


def test_open_windows_have_the_columns_of_a_later_version() -> None:
    one, other = {"place": es.rank("t")}, {"place": es.rank("t", descending=True)}
    whole = [Changing(ranked("16s", **columns)).finish() for columns in (one, other)]
    stopped = Changing(ranked("16s", **one)).stop_at(3)
    before = stopped.shown()
    shown = stopped.change(ranked("16s", **other)).finish()
    over = {row[3] for row in before}
    assert before and not before - whole[0]
    assert {row: n for row, n in shown.items() if row[3] in over} == before
    rest = {row: n for row, n in shown.items() if row[3] not in over}
    assert rest and rest == {row: n for row, n in whole[1].items() if row[3] not in over}


def test_other_windows_are_refused() -> None:
    stopped = Changing(ranked("16s", place=es.rank("t"))).stop_at(3)
    with pytest.raises(UserError, match="window: '16 s every 16 s' is now '8 s every 8 s'"):
        stopped.change(ranked("8s", place=es.rank("t")))


def best(k: int) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        rows = pl.DataFrame({"t": range(RECORDS)}).with_columns(k=pl.col("t") * 7 % 5)
        timed = pipeline.source(rows_source(rows, 3), name="rows").event_time("t", unit="s")
        out = timed.key_by("k").window(es.Tumbling("16s")).top_k(k, by="t", name="best", shards=2)
        return out.map(lambda row: tuple(row.values()), name="tuples")

    return build


def test_another_number_of_the_best_is_refused() -> None:
    stopped = Changing(best(2)).stop_at(3)
    assert stopped.change(best(2)).finish() == Changing(best(2)).finish()
    with pytest.raises(UserError, match="k: 2 is now 3"):
        Changing(best(2)).stop_at(3).change(best(3))
