"""Streams for Hypothesis have the disorder, the duplicates and the gaps that were asked for, and no more."""

import subprocess
import sys
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.testing.strategies import batches, record_streams

ROWS = st.fixed_dictionaries({"user": st.sampled_from("ab")})


def behind(stream: list[dict[str, Any]]) -> int:
    """How far a row is behind the newest one before it, at most."""
    newest, most = 0, 0
    for row in stream:
        newest = max(newest, row["at"])
        most = max(most, newest - row["at"])
    return most


@given(record_streams(ROWS))
def test_without_options_rows_are_in_order_and_come_once(stream: list[dict[str, Any]]) -> None:
    times = [row["at"] for row in stream]
    assert times == sorted(times)
    assert all(later - earlier <= 1 for earlier, later in pairwise(times))
    assert all(type(row["at"]) is int and row["user"] in "ab" for row in stream)


@given(record_streams(ROWS, disorder="5s", duplicates=True, step="3s", gap="60s"))
def test_no_row_is_later_than_the_disorder_allows(stream: list[dict[str, Any]]) -> None:
    assert behind(stream) <= 5


@given(record_streams(ROWS, unit="ms", step="20ms", min_size=2, max_size=3))
def test_the_unit_and_the_size_are_kept(stream: list[dict[str, Any]]) -> None:
    assert 2 <= len(stream) <= 3
    assert stream[-1]["at"] <= 60


def test_disorder_duplicates_and_gaps_are_found() -> None:
    streams = record_streams(ROWS, disorder="5s", step="3s")
    assert behind(find(streams, lambda stream: behind(stream) == 4)) == 4
    doubled = find(
        record_streams(ROWS, duplicates=True),
        lambda stream: max(Counter(map(str, stream)).values(), default=0) > 1,
    )
    assert len(doubled) == 2 and doubled[0] == doubled[1] and doubled[0] is not doubled[1]
    paused = find(record_streams(ROWS, gap="1h"), lambda s: any(row["at"] >= 3600 for row in s))
    assert [row["at"] for row in paused] == [3600]


def test_durations_that_the_unit_cannot_express_are_refused() -> None:
    with pytest.raises(
        UserError, match="disorder is 500000 microseconds: give a whole number of s"
    ):
        record_streams(ROWS, disorder="500ms")
    with pytest.raises(UserError, match="step is -1000000 microseconds"):
        record_streams(ROWS, step="-1s")


@given(batches([1, 2, 3, 4]))
def test_batches_lose_nothing(cut: list[list[int]]) -> None:
    assert [n for batch in cut for n in batch] == [1, 2, 3, 4]
    assert all(cut)


@given(batches([]))
def test_no_records_make_no_batches(cut: list[list[int]]) -> None:
    assert cut == []


def test_batches_are_cut_anywhere() -> None:
    whole = find(batches([1, 2, 3]), lambda cut: len(cut) == 1)
    single = find(batches([1, 2, 3]), lambda cut: len(cut) == 3)
    assert (whole, single) == ([[1, 2, 3]], [[1], [2], [3]])


@given(st.data())
@settings(max_examples=10)
def test_nothing_is_late_with_a_lateness_as_large_as_the_disorder(data: st.DataObject) -> None:
    stream = data.draw(record_streams(ROWS, disorder="5s", duplicates=True, step="7s", max_size=12))
    pipeline = es.Pipeline("counts")
    timed = pipeline.source(es.FromList([]), name="rows").event_time("at", unit="s", lateness="5s")
    window = timed.key_by("user").window(es.Tumbling("10s"))
    window.aggregate(n=es.count(), name="count").sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        for batch in data.draw(batches(stream)):
            h.push("rows", batch)
        h.end()
        assert h.late("count") == []
        found = {(row["user"], row["window_start"]): row["n"] for row in h.output("out")}
    assert found == Counter((row["user"], row["at"] // 10 * 10) for row in stream)


def test_without_hypothesis_the_error_names_the_extra() -> None:
    program = (
        "import sys\n"
        "sys.modules['hypothesis'] = None\n"
        "from everstream.testing import strategies\n"
        "from everstream.errors import MissingExtra\n"
        "try:\n"
        "    strategies.batches([])\n"
        "except MissingExtra as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'everstream[testing]'" in done.stdout, done.stderr
