"""Bids on always the same auctions: replayable and evenly spread."""

import pytest

from everstream.errors import UserError
from everstream.testing.sources import check_source
from everstream_lab.bench.workloads.steady_bids import SteadyBids


def test_steady_bids_are_a_source_that_replays_and_covers_everything_once() -> None:
    bids = SteadyBids(total=700, auctions=20)
    check_source(lambda: bids.source(batch=64), expected=bids.bids(0, 700).rows(named=True))


def test_every_auction_is_as_wanted_as_the_others() -> None:
    counts = SteadyBids(auctions=1_000).bids(10**9, 10**9 + 1_000_000)["auction"].value_counts()
    assert counts.height == 1_000
    # Five standard deviations of a thousand.
    assert counts["count"].is_between(840, 1_160).all()


def test_a_second_of_event_time_has_as_many_bids_as_were_asked_for() -> None:
    times = SteadyBids(bids_per_s=250.0).bids(0, 1_000)["time"]
    assert times.to_list() == [number * 4_000 for number in range(1_000)]


def test_wrong_settings_are_refused_with_a_reason() -> None:
    with pytest.raises(UserError, match="auctions"):
        SteadyBids(auctions=0)
    with pytest.raises(UserError, match="bids_per_s"):
        SteadyBids(bids_per_s=-1)
