"""Sources that are too far ahead wait for the slowest."""

import everstream as es
from everstream.core.coordinators.time_alignment import TimeAlignment
from everstream.core.ids import ShardId
from everstream.core.measuring import Meter
from everstream.core.plan import Plan, make_plan
from everstream.pipeline.stream import Pipeline
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK


def plan(max_drift: str | None = "1m") -> Plan:
    pipeline = Pipeline("orders")
    for name, shards, drift in (("web", 2, max_drift), ("shop", 1, max_drift), ("other", 1, None)):
        source = pipeline.source(es.FromList([{"at": 0}]), name=name, shards=shards)
        source.event_time("at", unit="s", max_drift=drift, name=f"{name}-time").collect(
            name=f"{name}-out"
        )
    return make_plan(pipeline, 2)


def at(us: int | None) -> Meter:
    return Meter(source_time_us=us, time_waits_for="it")


WEB_0, WEB_1, SHOP, OTHER = (
    ShardId("web", 0),
    ShardId("web", 1),
    ShardId("shop", 0),
    ShardId("other", 0),
)


def test_the_least_event_time_of_the_group_counts() -> None:
    alignment = TimeAlignment(plan())
    meters = {WEB_0: at(50), WEB_1: at(70), OTHER: at(1)}
    assert not alignment.advanced(meters), "the shop has not reported yet"
    meters[SHOP] = at(None)
    assert alignment.advanced(meters) and alignment.least_us == NO_WATERMARK
    meters[SHOP] = at(90)
    assert alignment.advanced(meters) and alignment.least_us == 50
    assert not alignment.advanced(meters)


def test_a_source_that_has_ended_is_not_waited_for() -> None:
    alignment = TimeAlignment(plan())
    over = Meter()
    assert alignment.advanced({WEB_0: over, WEB_1: at(5), SHOP: over}) and alignment.least_us == 5
    assert alignment.advanced({WEB_0: over, WEB_1: over, SHOP: over})
    assert alignment.least_us == END_OF_TIME


def test_without_max_drift_no_source_waits() -> None:
    assert not TimeAlignment(plan(None)).advanced({WEB_0: at(1), WEB_1: at(2), SHOP: at(3)})
