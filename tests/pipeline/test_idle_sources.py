"""A source that is silent does not hold back time for the others, with `idle_after`."""

from typing import Any

import pytest

import everstream as es
from everstream import testing
from everstream.connectors.generate.sources import FromList
from everstream.core.plan import make_plan
from everstream.errors import GraphError, UserError
from everstream.pipeline.stream import Pipeline, Stream


def counts(idle_after: str | None, lateness: str = "0s") -> Pipeline:
    pipeline = Pipeline("orders")

    def side(name: str) -> Stream:
        source = pipeline.source(FromList([{"at": 0}]), name=name)
        return source.event_time(
            "at", unit="s", lateness=lateness, idle_after=idle_after, name=f"{name}-time"
        )

    both = side("web").union(side("shop"))
    windows = both.window(es.Tumbling("10s")).aggregate(n=es.count(), name="count")
    windows.collect(name="out")
    return pipeline


def shown(h: testing.Harness) -> list[Any]:
    return [tuple(row.values()) for row in h.output("out") + h.uncommitted("out")]


def test_without_it_a_silent_source_holds_back_time() -> None:
    with testing.harness(counts(None), start=1_000) as h:
        h.push("web", [{"at": 990}, {"at": 1000}])
        h.advance("1h")
        assert shown(h) == []


def test_a_silent_source_is_at_the_present_after_a_while() -> None:
    with testing.harness(counts("5s", lateness="2s"), start=1_000) as h:
        h.push("web", [{"at": 990}, {"at": 1000}])
        h.advance("4s")
        assert shown(h) == []
        h.advance("3s")
        assert shown(h) == [(990, 1000, 1)], "the shop is at 1007 - 5 - 2"
        h.push("shop", [{"at": 999}])
        assert h.late("count") == [{"at": 999}]
        h.push("shop", [{"at": 1001}])
        h.end()
        assert sorted(shown(h)) == [(990, 1000, 1), (1000, 1010, 2)]


def test_what_is_late_stays_late_after_a_crash() -> None:
    with testing.harness(counts("5s"), start=1_000) as h:
        h.push("web", [{"at": 990}, {"at": 1000}])
        h.advance("6s")
        h.checkpoint()
        h.crash("shop:0")
        h.push("shop", [{"at": 999}])
        h.checkpoint()
        assert h.late("count") == [{"at": 999}] and h.output("out")[0]["n"] == 1


def test_a_source_that_gives_records_again_is_no_longer_at_the_present() -> None:
    with testing.harness(counts("5s"), start=1_000) as h:
        for at in range(1000, 1030):
            h.push("web", [{"at": at}])
            if at % 4 == 0:
                h.push("shop", [{"at": at}])
            h.advance("1s")
        assert not h.late("count")
        h.end()
        assert sorted(shown(h)) == [(1000, 1010, 13), (1010, 1020, 12), (1020, 1030, 13)]


def test_idle_after_belongs_to_the_shards_of_the_source() -> None:
    moved = Pipeline("test").source(FromList([{"at": 0}]), shards=2).on_demand()
    moved = moved.map(lambda row: row, shards=3)
    with pytest.raises(GraphError, match="right after the source"):
        make_plan(moved.event_time("at", unit="s", idle_after="1s").collect(), 2)
    with pytest.raises(UserError, match="greater than 0"):
        moved.event_time("at", unit="s", idle_after=0)
