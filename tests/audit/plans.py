"""A pipeline and a plan that are large enough to have something of everything."""

import everstream as es
from everstream.core.plan import Plan, make_plan


def three() -> es.Pipeline:
    pipeline = es.Pipeline("three")
    (
        pipeline.source(es.Range(600), name="numbers")
        .key_by(lambda n: n % 7)
        .fold(init=int, update=lambda count, n: count + 1, name="count", shards=2)
        .on_demand()
        .sink(es.JsonLines("never-written/"), name="out", shards=1)
    )
    return pipeline


def plan_of_three() -> Plan:
    return make_plan(three(), 4)
