"""Columns are known before anything runs, and one that does not exist is an error where it is used."""

from collections.abc import Callable
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


def _kept_before(stream: Stream) -> list[list[str]]:
    """What stays: the operators that were right."""
    names = list(stream.pipeline.graph.nodes)
    return [names] if names[1:] in (["with_columns"], ["event_time"]) else []


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


def test_behind_a_function_columns_are_unknown_and_nothing_is_refused() -> None:
    stream = orders().map(lambda row: {"other": row["cents"]})
    assert stream.schema is None
    assert stream.filter(pl.col("other") > 3).schema is None
    assert orders().filter(lambda row: row["user"] == "ada").schema == pl.Schema(
        {"user": pl.String, "cents": pl.Int64, "at": pl.Int64}
    )
    assert orders().with_columns(x=pl.col("cents").map_elements(abs, pl.Int64)).schema is None
    assert orders().with_columns(x=pl.col("cents").get(0)).schema is None  # needs a row
    union = orders()
    other = union.pipeline.source(es.Range(3, column="n"))
    assert union.union(other).schema is None
    with pytest.raises(GraphError, match="'select': there is no column 'm'"):
        other.select("m")
