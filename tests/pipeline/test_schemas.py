"""Columns are known before anything runs, and one that does not exist is an error where it is used."""

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.errors import GraphError, UserError
from everstream.pipeline.stream import Pipeline, Stream

ORDERS = {"user": "ada", "cents": 5, "at": 1}


def orders() -> Stream:
    return Pipeline("orders").source(es.FromList([ORDERS]), name="orders")


@pytest.mark.parametrize(
    ("use", "match"),
    [
        (lambda s: s.filter(pl.col("usr") == "a"), "'filter': there is no column 'usr'.*Did you mean user"),
        (lambda s: s.select("user", "cent"), "'select': .*'cent'.*Did you mean cents"),
        (lambda s: s.with_columns(x=pl.col("user").dt.year()), "dtype `str`; the columns here are"),
        (lambda s: s.event_time("time", unit="s"), "'event_time': there is no column 'time'"),
        (lambda s: s.key_by("usr").fold(int, lambda n, _: n), "'fold': key_by: there is no column 'usr'"),
        (lambda s: s.key_by("user").aggregate(n=es.sum("cent")), "'aggregates': .*'cent'"),
        (lambda s: s.key_by("usr").aggregate(n=es.count()), "'aggregates': .*Did you mean user"),
        (lambda s: s.key_by("user").aggregate(n=es.sum("user")), "cannot add up values of type String"),
        (lambda s: s.deduplicate("usr"), "'deduplicate': .*Did you mean user"),
        (lambda s: s.branch(pl.col("usr") == "a"), "'branch': there is no column 'usr'"),
        (
            lambda s: s.lookup(lambda keys: keys, on="usr", schema={"city": pl.String}),
            "'lookup': there is no column 'usr'",
        ),
        (
            lambda s: s.event_time("at", unit="s").key_by("user").window(es.Tumbling("1m"))
            .aggregate(n=es.max("cent")),
            "'window': .*'cent'",
        ),
        (lambda s: s.with_columns(y=1).filter(pl.col("z") > 0), "columns here are user, cents, at, y"),
        (lambda s: s.filter(pl.col("user") > 3), "cannot compare string with numeric"),
        (lambda s: s.key_by("user").aggregate(n=es.top_k("cent", 2)), "'aggregates': .*'cent'"),
        (
            lambda s: s.key_by("user").aggregate(n=es.sum("cent"), emit="record"),
            "'aggregates': .*Did you mean cents",
        ),
        (
            lambda s: s.event_time("at", unit="s").window(es.Tumbling("1m"))
            .with_columns(place=es.rank("cent")),
            "'window_rows': .*Did you mean cents",
        ),
        (
            lambda s: s.key_by("user").aggregate(total=es.sum("cents")).filter(pl.col("totl") > 1),
            "columns here are user, total. .*Did you mean total",
        ),
        (
            lambda s: s.key_by("user").window(es.CountWindow(2)).aggregate(n=es.sum("cent")),
            "'window': .*Did you mean cents",
        ),
        (lambda s: s.sink(es.Parquet("x/", schema={"usr": pl.String})), "'user' in schema=.*usr"),
        (
            lambda s: s.select("user").sink(es.Csv("x/", schema={"user": pl.Int64})),
            "'user': it is String, which a column of type Int64 does not hold",
        ),
        (
            lambda s: s.select(xs=pl.concat_list("cents")).sink(es.Csv("x/")),
            "'xs': List.Int64. has no CSV form",
        ),
    ],
)  # fmt: skip
def test_a_wrong_column_is_an_error_where_it_is_written(
    use: Callable[[Stream], Any], match: str
) -> None:
    stream = orders()
    with pytest.raises(UserError, match=match):
        use(stream)
    # Nothing is left of the attempt: the next one may have the same names.
    assert list(stream.pipeline.graph.nodes) in (["orders"], *_kept_before(stream))
    with pytest.raises(UserError, match=match):
        use(stream)


def test_a_wrong_column_of_a_join_names_the_side() -> None:
    left = orders().event_time("at", unit="s")
    right = left.pipeline.source(es.FromList([{"usr": "ada", "at": 1}]), name="others")
    other = right.event_time("at", unit="s", name="timed")
    names = list(left.pipeline.graph.nodes)
    window = es.Tumbling("1m")
    with pytest.raises(
        GraphError, match=r"right side: there is no column 'user'.*Did you mean usr"
    ):
        left.window_join(other, on="user", window=window)
    with pytest.raises(GraphError, match=r"left side: there is no column 'usr'.*Did you mean user"):
        left.interval_join(other, on="usr", between=(0, "1s"))
    with pytest.raises(GraphError, match=r"right side: there is no column 'gone'"):
        left.join_as_of(other, on="user", other_on="usr", delete="gone")
    assert list(left.pipeline.graph.nodes) == names, "nothing is left of the attempts"
    assert len(left.pipeline.graph.edges) == 2
    joined = left.window_join(other, on="user", other_on="usr", window=window)
    assert joined.schema is not None and "at_right" in joined.schema


def _kept_before(stream: Stream) -> list[list[str]]:
    """What stays: the operators that were right."""
    names = list(stream.pipeline.graph.nodes)
    right = ["with_columns", "event_time", "select", "aggregates-local", "aggregates"]
    return [names] if set(names[1:]) <= {*right} else []


def test_a_stream_has_the_columns_that_arrive(tmp_path: Any) -> None:
    stream = (
        orders()
        .with_columns(euros=pl.col("cents") / 100, first=pl.col("user").str.slice(0, 1))
        .filter(pl.col("euros") > 0)
        .event_time("at", unit="s")
        .deduplicate("user")
    )
    few = stream.select("first", pl.col("euros").cast(pl.Float32))
    for one in (stream, few):
        expected = one.schema
        one.collect(name=f"out-{len(expected)}")
    result = stream.pipeline.run(store=str(tmp_path))
    for one in (stream, few):
        assert one.schema == result.to_polars(f"out-{len(one.schema)}").schema


def test_results_of_windows_aggregates_and_joins_have_the_columns_that_arrive(
    tmp_path: Any,
) -> None:
    row = {"k": "a", "i": 5, "f": 1.5, "s": 3, "d": date(2020, 1, 1), "t": "x", "b": True, "at": 1}
    row |= {"m": Decimal("1.25"), "u": datetime(2020, 1, 1)}
    pipeline = Pipeline("all")
    rows = pipeline.source(es.FromList([row])).with_columns(pl.col("s").cast(pl.Int16))
    s = rows.with_columns(pl.col("f").cast(pl.Float32)).event_time("at", unit="s")
    zoned = pl.col("u").dt.replace_time_zone("UTC")
    z = pipeline.source(es.FromList([row])).select("k", "i", dd="d", u=zoned).event_time("u")
    simple = {"n": es.count(), "i_": es.sum("i"), "ss": es.sum("s"), "fs": es.sum("f")}
    simple |= {"ms": es.max("s"), "mf": es.min("f"), "a_": es.avg("i"), "mm": es.sum("m")}
    simple |= {"am": es.avg("m"), "dm": es.max("d"), "um": es.min("u"), "bm": es.max("b")}
    top = {"top": es.top_k("i", 2), "top2": es.top_k("i", 2, "t")}
    other = s.select("k", "i", "at", v="t")
    minute = es.Tumbling("1m")
    streams = {
        "windows": s.key_by("k").window(minute).aggregate(**simple, **top, mt=es.max("t")),
        "all": s.window(es.Sliding("10s", every="5s")).aggregate(**simple),
        "zoned": z.key_by("k", "dd").window(minute).aggregate(n=es.count()),
        "sessions": z.key_by("k").window(es.Session("10s")).aggregate(n=es.count()),
        "clock": s.key_by("k").window(minute, time="processing").aggregate(n=es.count()),
        "clock-all": s.window(minute, time="processing").aggregate(n=es.count()),
        "top": s.window(minute).top_k(2, by=["i", "t"]),
        "odd": s.key_by(pl.col("i") % 2).window(minute).aggregate(n=es.count()),
        "changes": s.key_by("k").aggregate(**simple, **top),
        "records": s.key_by("k").aggregate(emit="record", **simple),
        "ranked": s.key_by("k").window(minute).with_columns(
            x=es.rank("i"), y=es.lag("t"), zz=es.cumulative(es.sum("s"))
        ),
        "ranked-z": z.window(minute).with_columns(x=es.rank("i", method="average")),
        "interval": s.interval_join(other, on="k", between=("-1s", "1s")),
        "full": s.window_join(other, on="k", window=minute, how="full"),
        "window-z": z.window_join(z, on="k", window=minute),
        "as-of": s.join_as_of(other, on="k", how="left"),
        "broadcast": s.broadcast_join(other, on=["k", "i"]),
        "split": s.branch(pl.col("i") > 3)[0],
    }  # fmt: skip
    for name, one in streams.items():
        one.collect(name=name)
    result = pipeline.run(engine="local", workers=1)
    for name, one in streams.items():
        assert one.schema == result.to_polars(name).schema, name


def test_what_depends_on_a_function_or_comes_back_has_unknown_columns() -> None:
    keyed = orders().event_time("at", unit="s").key_by(lambda row: row["user"])
    assert keyed.window(es.Tumbling("1m")).aggregate(n=es.count()).schema is None
    own = es.custom(list, lambda seen, row: [*seen, row["cents"]], list.__add__)
    assert orders().key_by("user").aggregate(all=own).schema is None
    halves = orders().with_columns(cents=pl.col("cents") // 2, name="halves")
    again, done = halves.branch(pl.col("cents") > 1)
    assert done.schema is not None
    again.map(lambda row: {"cents": row["cents"]}).feedback(to=halves)
    assert halves.schema is None and done.schema is None


def test_streams_that_part_and_meet_many_times_are_found_out_at_once() -> None:
    stream = orders().map(lambda row: row)
    for _ in range(40):
        one, two = stream.branch(lambda row: row["cents"] > 3)
        stream = one.union(two)
    assert stream.filter(lambda row: True).schema is None


def test_a_file_has_columns_once_it_was_read(tmp_path: Any) -> None:
    pl.DataFrame({"n": [1], "x": [0.5]}).write_parquet(tmp_path / "a.parquet")
    pipeline = Pipeline("files")
    rows = pipeline.source(es.Parquet(tmp_path / "a.parquet"))
    rows.filter(pl.col("m") > 1).collect()
    with pytest.raises(GraphError, match=r"'filter': there is no column 'm'; .* n, x"):
        pipeline.explain()
    assert rows.schema == pl.Schema({"n": pl.Int64, "x": pl.Float64})


def test_behind_a_function_columns_are_unknown_and_nothing_is_refused() -> None:
    stream = orders().map(lambda row: {"other": row["cents"]})
    assert stream.schema is None
    assert stream.filter(pl.col("other") > 3).schema is None
    assert orders().filter(lambda row: row["user"] == "ada").schema == pl.Schema(
        {"user": pl.String, "cents": pl.Int64, "at": pl.Int64}
    )
    assert orders().with_columns(x=pl.col("cents").map_elements(abs, pl.Int64)).schema is None
    needs_a_row = orders().with_columns(x=pl.col("cents").get(0)).schema
    assert needs_a_row is not None and needs_a_row["x"] == pl.Int64
    union = orders()
    other = union.pipeline.source(es.Range(3, column="n"))
    assert union.union(other).schema is None
    with pytest.raises(GraphError, match="'select': there is no column 'm'"):
        other.select("m")
