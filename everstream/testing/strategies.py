"""Strategies for Hypothesis: streams of records as they arrive in practice.

Records have times, arrive out of order, come twice, and pause. They need the package hypothesis:
`pip install 'everstream[testing]'`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from everstream.errors import UserError
from everstream.extras import extra
from everstream.pipeline.event_time.windows import Duration
from everstream.pipeline.times import Unit, in_unit, microseconds

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


def record_streams(
    rows: "SearchStrategy[Mapping[str, Any]]",
    *,
    time: str = "at",
    unit: Unit = "s",
    step: Duration = "1s",
    disorder: Duration = 0,
    duplicates: bool = False,
    gap: Duration = 0,
    min_size: int = 0,
    max_size: int = 50,
) -> "SearchStrategy[list[dict[str, Any]]]":
    """Lists of rows with times, in the order in which they arrive.

    No row arrives more than `disorder` behind the newest one, so none is late for an event_time with
    that lateness.

    rows: a strategy for the rows without their time, such as st.fixed_dictionaries({...}).
    time, unit: the column for the time, and its unit; times begin at 0.
    step: at most this much time passes between two rows.
    disorder: rows arrive out of order by at most this much (default: in order).
    duplicates: whether rows may come twice.
    gap: now and then this much time passes without a row (default: never).
    min_size, max_size: how many rows there are, without duplicates.

    >>> from everstream.testing.strategies import record_streams
    >>> from hypothesis import given, strategies as st
    >>> rows = st.fixed_dictionaries({"user": st.sampled_from("ab")})
    >>> @given(record_streams(rows, disorder="5s", duplicates=True))
    ... def counts_every_user(stream):
    ...     assert {row["user"] for row in stream} <= {"a", "b"}
    >>> counts_every_user()
    """
    with extra("testing"):
        from hypothesis import strategies as st
    step_us, disorder_us, gap_us = map(microseconds, (step, disorder, gap))
    one_us = 1_000_000 // in_unit(1_000_000, unit) or 1
    for name, value in {"step": step_us, "disorder": disorder_us, "gap": gap_us}.items():
        if value < 0 or value % one_us:
            raise UserError(
                f"{name} is {value} microseconds: give a whole number of {unit}, from 0."
            )
    delays = st.integers(0, disorder_us // one_us)
    pauses = st.integers(0, step_us // one_us)
    if gap_us:
        pauses = st.one_of(pauses, st.just(gap_us // one_us))
    repeats = st.lists(delays, min_size=1, max_size=2 if duplicates else 1)

    @st.composite
    def streams(draw: "DrawFn") -> list[dict[str, Any]]:
        drawn = draw(
            st.lists(st.tuples(rows, pauses, repeats), min_size=min_size, max_size=max_size)
        )
        at, arriving = 0, []
        for row, pause, delayed in drawn:
            at += pause
            timed = {**row, time: in_unit(at * one_us, unit)}
            arriving += [(at + delay, timed) for delay in delayed]
        arriving.sort(key=lambda arrival: arrival[0])
        return [dict(timed) for _, timed in arriving]

    return streams()


def batches(records: Sequence[Any]) -> "SearchStrategy[list[list[Any]]]":
    """Ways to cut a stream into batches: a correct pipeline gives the same output for all of them.

    >>> from everstream.testing.strategies import batches
    >>> from hypothesis import given
    >>> @given(batches([1, 2, 3]))
    ... def nothing_is_lost(cut):
    ...     assert [n for batch in cut for n in batch] == [1, 2, 3]
    >>> nothing_is_lost()
    """
    with extra("testing"):
        from hypothesis import strategies as st
    cuts = st.sets(st.integers(1, max(1, len(records) - 1)))

    def cut(places: set[int]) -> list[list[Any]]:
        bounds = sorted({0, len(records), *(place for place in places if place < len(records))})
        return [list(records[start:end]) for start, end in pairwise(bounds)]

    return cuts.map(cut)
