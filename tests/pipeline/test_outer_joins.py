"""Rows without a partner: with nulls of known types, once, and as soon as no partner can come."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream import testing
from everstream.core.upgrade.compatibility import UpgradeOverrides
from everstream.errors import EverstreamError, UserError
from everstream.pipeline.stream import Pipeline, Stream
from tests.pipeline.sim import rows_source
from tests.simulation.changing import Build, Changing

ORDER = {"id": pl.Int64(), "at": pl.Int64(), "item": pl.String()}
PAYMENT = {"id": pl.Int64(), "at": pl.Int64(), "paid": pl.Float64()}
orders = [{"id": 1, "at": 0, "item": "pen"}]
payments = [{"id": 1, "at": 5, "paid": 2.5}]


def joined(how: Any, **more: Any) -> Pipeline:
    pipeline = Pipeline("orders")
    left = pipeline.source(es.FromList(orders), name="orders").event_time("at", unit="s")
    right = pipeline.source(es.FromList(payments), name="payments").event_time("at", unit="s")
    pairs = left.interval_join(right, on="id", between=("0s", "10s"), how=how, name="join", **more)
    pairs.collect(name="out")
    return pipeline


def test_a_row_comes_out_alone_as_soon_as_no_partner_can_come() -> None:
    with testing.harness(joined("left")) as h:
        h.push("orders", [{"id": 1, "at": 100, "item": "pen"}, {"id": 2, "at": 101, "item": "cup"}])
        h.push("payments", [{"id": 1, "at": 105, "paid": 2.5}])
        h.watermark("orders", 111)
        h.watermark("payments", 111)
        # A payment for order 2 may still come, with the time 111.
        assert [row["id"] for row in h.uncommitted("out")] == [1]
        h.watermark("orders", 112)
        h.watermark("payments", 112)
        alone = {"id": 2, "at": 101, "item": "cup", "at_right": None, "paid": None}
        assert h.uncommitted("out")[1:] == [alone]
        h.checkpoint()
        h.crash("join:0")
        h.end()
        assert len(h.output("out")) == 2


def test_a_match_before_a_crash_counts_after_it() -> None:
    with testing.harness(joined("full")) as h:
        h.push("orders", [{"id": 1, "at": 0, "item": "pen"}])
        h.push("payments", [{"id": 1, "at": 5, "paid": 2.5}, {"id": 7, "at": 5, "paid": 1.0}])
        h.checkpoint()
        h.crash("join:0")
        h.end()
        assert sorted((row["id"], row["item"], row["paid"]) for row in h.output("out")) == [
            (1, "pen", 2.5),
            (7, None, 1.0),
        ]


@pytest.mark.parametrize("how", ["left", "right", "full"])
@pytest.mark.parametrize("kind", ["interval", "window"])
def test_a_side_that_never_had_a_row_does_not_change_types(how: Any, kind: str) -> None:
    day = datetime(2024, 5, 1, tzinfo=UTC)
    schema = {"id": pl.Int32(), "at": pl.Datetime("us", "UTC"), "n": pl.UInt8()}

    def side(pipeline: Pipeline, name: str, n: int) -> Stream:
        rows = pl.DataFrame({"id": range(n), "at": [day] * n, "n": [1] * n}, schema=schema)
        return pipeline.source(rows_source(rows, 2), name=name).event_time("at")

    kinds = []
    for sizes in ((3, 4), (0, 4), (3, 0)):
        pipeline = Pipeline("types")
        left, right = side(pipeline, "left", sizes[0]), side(pipeline, "right", sizes[1])
        more: Any = {"how": how, "schema": schema, "other_schema": schema, "shards": 2}
        if kind == "interval":
            out = left.interval_join(right, on="id", between=(0, 0), **more)
        else:
            out = left.window_join(right, on="id", window=es.Tumbling("24h"), **more)
        out.collect(name="out")
        batches = pipeline.run(engine="local").batches("out")
        frames = [batch for batch in batches if isinstance(batch, pl.DataFrame)]
        expected = {"left": sizes[0], "right": sizes[1], "full": max(sizes)}[how]
        assert sum(map(len, frames)) == expected
        kinds += [frame.schema for frame in frames]
    assert len(kinds) > 2 and all(one == kinds[0] for one in kinds)
    assert list(kinds[0].items())[:5] == [
        ("id", pl.Int32()),
        ("at", pl.Datetime("us", "UTC")),
        ("n", pl.UInt8()),
        ("at_right", pl.Datetime("us", "UTC")),
        ("n_right", pl.UInt8()),
    ]


def test_types_that_no_source_knows_must_be_declared() -> None:
    def join(**more: Any) -> None:
        pipeline = Pipeline("test")
        one, two = (
            pipeline.source(rows_source(pl.DataFrame({"k": [1], "t": [1]}), 1), name=name)
            for name in ("one", "two")
        )
        left, right = one.event_time("t", unit="s"), two.event_time("t", unit="s")
        left.interval_join(right, on="k", between=(0, 0), **more)

    with pytest.raises(UserError, match=r"columns of the right side.*other_schema=\{'column'"):
        join(how="left")
    with pytest.raises(UserError, match=r"columns of the left side.*schema=\{'column'"):
        join(how="right")
    with pytest.raises(UserError, match="there is no column 'k' on the right side"):
        join(how="left", other_schema={"t": pl.Int64})
    with pytest.raises(UserError, match="how='outer' is not valid"):
        join(how="outer")
    join(how="left", other_schema={"k": pl.Int64, "t": pl.Int64})


def test_the_time_of_a_missing_left_side_must_be_known_in_a_window_join() -> None:
    pipeline = Pipeline("test")
    one, two = (
        pipeline.source(es.FromList([{"k": 1, "t": datetime(2024, 1, 1)}]), name=name)
        for name in ("one", "two")
    )
    left, right = one.event_time(lambda row: row["t"]), two.event_time("t")
    with pytest.raises(UserError, match="give its event_time a column"):
        left.window_join(right, on="k", window=es.Tumbling("1s"), how="full")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": 1, "at": 5, "paid": "much"}, "'paid': 'much' is not an exact Float64"),
        (
            {"id": 1, "at": 5, "paid": 1.0, "by": "card"},
            "column 'by', which is not in their schema",
        ),
    ],
)
def test_rows_that_do_not_fit_their_schema_are_refused(row: Any, problem: str) -> None:
    with testing.harness(joined("left")) as h:
        h.push("orders", orders)
        with pytest.raises(EverstreamError, match=problem):
            h.push("payments", [row])


def test_a_null_finds_no_partner_and_nan_finds_nan() -> None:
    nan = float("nan")
    pipeline = Pipeline("floats")
    one = pipeline.source(es.FromList([{"k": k, "at": 0} for k in (1.5, nan, None)]), name="one")
    two = pipeline.source(es.FromList([{"k": k, "at": 0} for k in (nan, None, 2.0)]), name="two")
    left, right = one.event_time("at", unit="s"), two.event_time("at", unit="s")
    left.interval_join(right, on="k", between=(0, 0), how="full").collect(name="near")
    left.window_join(right, on="k", window=es.Tumbling("1s"), how="full").collect(name="same")
    with testing.harness(pipeline) as h:
        h.push("one", [{"k": k, "at": 0} for k in (1.5, nan, None)])
        h.push("two", [{"k": k, "at": 0} for k in (nan, None, 2.0)])
        h.end()
        expected = Counter(
            [
                ("nan", 0, 0),
                ("1.5", 0, None),
                ("None", 0, None),
                ("None", None, 0),
                ("2.0", None, 0),
            ]
        )
        for name in ("near", "same"):
            found = [(str(r["k"]), r["at"], r["at_right"]) for r in h.output(name)]
            assert Counter(found) == expected


def test_whole_numbers_and_floats_keep_the_type_of_the_left_key() -> None:
    pipeline = Pipeline("kinds")
    one = pipeline.source(es.FromList([{"k": k, "at": 0} for k in (1, 2)]), name="one")
    two = pipeline.source(es.FromList([{"k": k, "at": 0} for k in (1.0, 3.0)]), name="two")
    left, right = one.event_time("at", unit="s"), two.event_time("at", unit="s")
    left.interval_join(right, on="k", between=(0, 0), how="full").collect(name="out")
    frame = pipeline.run(engine="local").to_polars("out")
    assert frame.schema["k"] == pl.Int64
    assert sorted(frame.rows(), key=str) == [(1, 0, 0), (2, 0, None), (3, None, 0)]


def test_state_is_kept_as_long_as_needed_and_no_longer() -> None:
    with testing.harness(joined("full")) as h:
        for start in range(0, 1000, 10):
            h.push("orders", [{"id": n, "at": n, "item": "x"} for n in range(start, start + 10)])
            h.push("payments", [{"id": n, "at": n, "paid": 1.0} for n in range(start, start + 10)])
            kept = h.state("join")
            rows = sum(len(value) for value in kept.values() if isinstance(value, pl.DataFrame))
            # Orders wait for 10 s and payments for none; groups of rows are dropped whole.
            assert rows <= 2 * (10 + 10 + 3) + 10 + 3 + 10
        for name in ("orders", "payments"):
            h.watermark(name, 2000)
        assert not any(isinstance(value, pl.DataFrame) for value in h.state("join").values())


# Upgrades.

RECORDS, KEYS = 240, 6


def side(pipeline: Pipeline, name: str, keys: int) -> Stream:
    rows = pl.DataFrame({"t": range(RECORDS)}).with_columns(k=pl.col("t") * 7 % keys)
    timed = pipeline.source(rows_source(rows, 3), name=name)
    return timed.event_time("t", unit="s", name=f"{name}-time")


SCHEMA: Any = {"schema": {"t": pl.Int64, "k": pl.Int64}}
SCHEMA["other_schema"] = SCHEMA["schema"]


def near(how: Any) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        left, right = side(pipeline, "left", 9), side(pipeline, "right", 5)
        between = ("0s", "6s")
        out = left.interval_join(
            right, on="k", between=between, how=how, name="join", shards=2, **SCHEMA
        )
        return out.map(lambda row: tuple(row.values()), name="tuples")

    return build


def same(how: Any) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        left, right = side(pipeline, "left", 9), side(pipeline, "right", 5)
        out = left.window_join(
            right, on="k", window=es.Tumbling("8s"), how=how, name="join", shards=2, **SCHEMA
        )
        return out.map(lambda row: tuple(row.values()), name="tuples")

    return build


def expected_near() -> tuple[set[Any], set[Any], set[Any]]:
    """Pairs, and what is alone on the left and on the right."""
    left = [(t, t * 7 % 9) for t in range(RECORDS)]
    right = [(t, t * 7 % 5) for t in range(RECORDS)]
    pairs = [(a, b) for a in left for b in right if a[1] == b[1] and 0 <= b[0] - a[0] <= 6]
    alone = [(*a, None) for a in left if a not in {one for one, _ in pairs}]
    others = [(None, b[1], b[0]) for b in right if b not in {other for _, other in pairs}]
    return {(*a, b[0]) for a, b in pairs}, set(alone), set(others)


def test_an_interval_join_may_keep_fewer_sides_in_a_later_version() -> None:
    pairs, left, right = expected_near()
    stopped = Changing(near("full")).stop_at(3)
    before = {row for row in stopped.shown() if row[0] is None}
    stopped.change(near("left"))
    assert "continues as a left join instead of a full join" in stopped.notes[0]
    shown = stopped.finish()
    assert set(shown.values()) == {1}
    found = set(shown)
    assert found - right == pairs | left
    assert 0 < len(found & right) < len(right)
    assert {row for row in found if row[0] is None} == before
    times = sorted(row[2] for row in right)
    assert sorted(row[2] for row in before) == times[: len(before)]


def test_and_may_be_kept_back_without_a_mark_left() -> None:
    stopped = Changing(near("left")).stop_at(3).change(near("inner"))
    pairs, left, _ = expected_near()
    shown = set(stopped.finish())
    assert shown - left == pairs and left - shown


@pytest.mark.parametrize(("had", "has"), [("inner", "left"), ("left", "full"), ("left", "right")])
def test_an_interval_join_that_did_not_mark_its_rows_is_refused(had: Any, has: Any) -> None:
    stopped = Changing(near(had)).stop_at(3)
    with pytest.raises(UserError, match=rf"how: .* is now '{has}'.*drop_state=\['join'\]"):
        stopped.change(near(has))
    stopped.change(near(has), UpgradeOverrides(dropped=frozenset({"join"})))


@pytest.mark.parametrize(("had", "has"), [("inner", "full"), ("full", "inner"), ("left", "right")])
def test_a_window_join_may_change_in_any_way_and_open_windows_end_as_the_new(
    had: Any, has: Any
) -> None:
    whole = {how: Changing(same(how)).finish() for how in (had, has)}
    stopped = Changing(same(had)).stop_at(3).change(same(has))
    assert "windows that are open end as" in stopped.notes[0]
    shown = stopped.finish()

    def of(rows: Counter[Any], start: int) -> Counter[Any]:
        return Counter({row: n for row, n in rows.items() if row[3] == start})

    starts = sorted({row[3] for how in whole for row in whole[how]})
    as_before = [of(shown, start) == of(whole[had], start) for start in starts]
    assert all(
        as_was or of(shown, start) == of(whole[has], start)
        for as_was, start in zip(as_before, starts, strict=True)
    )
    assert as_before[0] and not all(as_before)
