"""Windows that give results before they end and correct them afterwards, as a user's tests see them."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.pipeline.stream import Pipeline, Stream
from tests.pipeline.sim import rows_source
from tests.simulation.changing import Build, Changing


def visits(window: Any, shards: int | None = None, **options: Any) -> Pipeline:
    pipeline = Pipeline("visits")
    clicks = pipeline.source(es.FromList([{"user": "a", "at": 0}]), name="clicks")
    timed = clicks.event_time("at", unit="s")
    counts = (
        timed.key_by("user")
        .window(window, **options)
        .aggregate(n=es.count(), name="count", shards=shards)
    )
    counts.collect(name="out")
    return pipeline


def clicks(*times: int, user: str = "a") -> list[dict[str, Any]]:
    return [{"user": user, "at": at} for at in times]


def shown(h: testing.Harness) -> list[tuple[Any, ...]]:
    if not h.finished:
        h.checkpoint()
    return [tuple(row.values()) for row in h.output("out")]


def test_a_window_gives_early_results_of_keys_that_have_changed_and_one_when_it_ends() -> None:
    with testing.harness(visits(es.Tumbling("10s"), early="5s")) as h:
        h.push("clicks", clicks(1, 2) + clicks(3, user="b"))
        assert shown(h) == []
        h.advance("5s")
        assert sorted(shown(h)) == [("a", 0, 10, "early", 2), ("b", 0, 10, "early", 1)]
        h.push("clicks", clicks(4))
        h.advance("20s")
        assert shown(h)[2:] == [("a", 0, 10, "early", 3)]
        h.push("clicks", clicks(11))
        assert sorted(shown(h)[3:]) == [("a", 0, 10, "on_time", 3), ("b", 0, 10, "on_time", 1)]
        h.end()
        assert shown(h)[5:] == [("a", 10, 20, "on_time", 1)]


def test_early_results_are_due_after_a_crash_and_a_change_of_shards_too() -> None:
    pipeline = visits(es.Tumbling("10s"), early="5s")
    with testing.harness(pipeline) as h:
        h.push("clicks", clicks(1, 2))
        h.checkpoint()
        h.crash("count:0")
        h.advance("5s")
        assert shown(h) == [("a", 0, 10, "early", 2)]
        h.push("clicks", clicks(3) + clicks(3, user="b"))
        h.checkpoint()
        h.restart(visits(es.Tumbling("10s"), shards=3, early="5s"))
        h.advance("5s")
        assert sorted(shown(h)[1:]) == [("a", 0, 10, "early", 3), ("b", 0, 10, "early", 1)]


def test_discarding_panes_are_to_be_added_up() -> None:
    options: dict[str, Any] = {"early": "5s", "allowed_lateness": "10s", "panes": "discarding"}
    with testing.harness(visits(es.Sliding("10s", every="5s"), **options)) as h:
        h.push("clicks", clicks(6, 7))
        h.advance("5s")
        h.push("clicks", clicks(8))
        h.push("clicks", clicks(12))
        h.push("clicks", clicks(9))
        h.end()
        found = shown(h)
        assert found[:3] == [
            ("a", 0, 10, "early", 2),
            ("a", 5, 15, "early", 2),
            ("a", 0, 10, "on_time", 1),
        ]
        assert found[3] == ("a", 0, 10, "late", 1)
        total: Counter[Any] = Counter()
        for _, start, end, _, n in found:
            total[start, end] += n
        assert total == {(0, 10): 4, (5, 15): 5, (10, 20): 1}


def test_a_late_update_says_so_and_without_timing_the_columns_are_as_ever() -> None:
    with testing.harness(visits(es.Tumbling("10s"), allowed_lateness="10s", timing=True)) as h:
        h.push("clicks", clicks(1, 12))
        h.push("clicks", clicks(2))
        assert shown(h) == [("a", 0, 10, "on_time", 1), ("a", 0, 10, "late", 2)]
        h.push("clicks", clicks(21))
        h.push("clicks", clicks(3))
        assert h.late("count") == clicks(3)
    with testing.harness(visits(es.Tumbling("10s"), early="5s", timing=False)) as h:
        h.push("clicks", clicks(1))
        h.advance("5s")
        assert shown(h) == [("a", 0, 10, 1)]


def test_a_session_that_grows_takes_back_what_it_has_given() -> None:
    with testing.harness(visits(es.Session("5s"), early="10s")) as h:
        h.push("clicks", clicks(1))
        h.advance("10s")
        assert shown(h) == [("a", 1, 6, "early", 1)]
        h.push("clicks", clicks(3))
        h.advance("10s")
        assert shown(h)[1:] == [("a", 1, 6, "retracted", 1), ("a", 1, 8, "early", 2)]
        h.advance("10s")
        assert len(shown(h)) == 3, "nothing has changed"
        h.push("clicks", clicks(20))
        assert shown(h)[3:] == [("a", 1, 8, "on_time", 2)]


def test_a_late_record_merges_two_sessions_that_were_over() -> None:
    with testing.harness(visits(es.Session("5s"), allowed_lateness="1m", timing=True)) as h:
        h.push("clicks", clicks(1, 8, 30) + clicks(2, user="b"))
        first = [("a", 1, 6, "on_time", 1), ("a", 8, 13, "on_time", 1), ("b", 2, 7, "on_time", 1)]
        assert sorted(shown(h)) == first
        h.checkpoint()
        h.crash("count:0")
        h.push("clicks", clicks(4))
        assert sorted(shown(h)[3:]) == [
            ("a", 1, 6, "retracted", 1),
            ("a", 1, 13, "late", 3),
            ("a", 8, 13, "retracted", 1),
        ]
        h.push("clicks", clicks(2))
        assert shown(h)[6:] == [("a", 1, 13, "late", 4)], "the same bounds: it replaces"


def test_a_session_that_was_over_and_is_open_again_is_taken_back_when_it_ends_again() -> None:
    with testing.harness(visits(es.Session("5s"), allowed_lateness="2s", timing=True)) as h:
        h.push("clicks", clicks(1) + clicks(7, user="b"))
        h.push("clicks", clicks(5))
        assert shown(h) == [("a", 1, 6, "on_time", 1)]
        h.push("clicks", clicks(9, user="b"))
        h.push("clicks", clicks(10, user="b"))
        assert shown(h)[1:] == [("a", 1, 6, "retracted", 1), ("a", 1, 10, "on_time", 2)]


def test_times_keep_their_type_and_timing_is_text() -> None:
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    frame = pl.DataFrame({"at": [begin + timedelta(seconds=s) for s in (0, 3, 20)]})
    for window in (es.Session("5s"), es.Tumbling("10s")):
        pipeline = Pipeline("typed")
        timed = pipeline.source(rows_source(frame, 1), name="rows").event_time("at")
        timed.window(window, timing=True).aggregate(n=es.count()).collect(name="out")
        found = pipeline.run(engine="local").to_polars("out")
        kind = pl.Datetime("us", "UTC")
        assert found.schema == {
            "window_start": kind,
            "window_end": kind,
            "timing": pl.String,
            "n": pl.Int64,
        }
        assert found["n"].to_list() == [2, 1]


RECORDS = 300


def changing(**options: Any) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        frame = pl.DataFrame({"t": range(RECORDS)}).with_columns(k=pl.col("t") % 4)
        timed = pipeline.source(rows_source(frame, 3), name="rows").event_time("t", unit="s")
        windows = timed.key_by("k").window(options.pop("window", es.Tumbling("20s")), **options)
        counts = windows.aggregate(n=es.count(), name="count", shards=2)
        rows = counts.select("k", "window_start", "window_end", "n", name="rows-out")
        return rows.map(lambda row: tuple(row.values()), name="tuples")

    return build


def test_a_later_version_may_ask_for_timing_and_not_for_other_panes() -> None:
    stopped = Changing(changing()).stop_at(3)
    with pytest.raises(UserError, match="panes"):
        stopped.change(changing(panes="discarding"))
    stopped.change(changing(timing=True, allowed_lateness="20s"))
    expected = Counter((t % 4, t // 20 * 20, t // 20 * 20 + 20) for t in range(RECORDS))
    assert stopped.finish() == Counter((*window, n) for window, n in expected.items())
    stopped = Changing(changing(window=es.Session("5s"))).stop_at(3)
    with pytest.raises(UserError, match="updates"):
        stopped.change(changing(window=es.Session("5s"), timing=True))


def stream() -> Stream:
    return Pipeline("test").source(es.FromList([{"k": 1, "t": 1}])).event_time("t", unit="s")


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: stream().window(es.Tumbling("1s"), early=0), "more than 0"),
        (lambda: stream().window(es.Tumbling("1s"), allowed_lateness="-1s"), "0 or more"),
        (lambda: stream().window(es.Tumbling("1s"), panes="new"), "'discarding'"),  # type: ignore[arg-type]
        (lambda: stream().window(es.Session("1s"), panes="discarding"), "sessions take"),
        (lambda: stream().window(es.Session("1s"), early="1s", timing=False), "sessions take"),
        (lambda: stream().window(es.Tumbling("1s"), time="processing", early="1s"), "neither"),
        (
            lambda: stream().window(es.Tumbling("1s"), early="1s").with_columns(n=es.rank("t")),
            "early",
        ),
        (
            lambda: stream().window(es.Tumbling("1s"), timing=True).aggregate(timing=es.count()),
            "column of every result",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(build: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        build()
