"""What it costs to resume is measured on stores and sinks that have been in use for long."""

from everstream_lab.bench.state.opening import measure


def test_a_store_that_was_opened_often_reads_and_lists_no_more_than_one_that_was_not() -> None:
    costs = measure(slots=200, parts=50, rows=50, progress=lambda text: None)
    assert [(cost.what, cost.many) for cost in costs] == [
        (what, many)
        for what, most in (("slots", 200), ("parts", 50), ("rows", 50))
        for many in (10, most)
    ]
    few, many, *_ = costs
    assert few.reads is not None and many.reads is not None and many.reads <= few.reads
