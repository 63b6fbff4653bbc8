"""The NEXMark generator: proportions, references, skew, and that it replays."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.errors import UserError
from everstream.testing.sources import check_source
from everstream_lab.bench.workloads.nexmark import KINDS, PER_ROUND, PRICES, Kind, Nexmark


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_a_source_that_replays_and_covers_everything_once(kind: Kind) -> None:
    events = Nexmark(events=1_234, seed=5)
    check_source(
        lambda: events.source(kind, batch=100),
        shards=(1, 2, 3),
        expected=events.all(kind).rows(named=True),
    )


@given(
    seed=st.integers(0, 2**63),
    kind=st.sampled_from(KINDS),
    start=st.integers(0, 10**9),
    length=st.integers(1, 300),
    cut=st.floats(0, 1),
)
@settings(max_examples=60)
def test_records_depend_on_seed_and_position_alone(
    seed: int, kind: Kind, start: int, length: int, cut: float
) -> None:
    make = getattr(Nexmark(seed=seed), kind)
    whole = make(start, start + length)
    middle = start + int(length * cut)
    pieces = pl.concat([make(start, middle), make(middle, start + length)])
    assert whole.equals(pieces)


def test_another_seed_gives_other_bids() -> None:
    one, other = (Nexmark(events=5_000, seed=seed).all("bids") for seed in (1, 2))
    same = (one["price"] == other["price"]).sum()
    assert same < 0.01 * one.height


@given(events=st.integers(0, 2_000))
@settings(max_examples=60)
def test_kinds_come_one_to_three_to_forty_six(events: int) -> None:
    nexmark = Nexmark(events=events)
    counts = {kind: nexmark.count(kind) or 0 for kind in KINDS}
    assert sum(counts.values()) == events
    frames = {kind: nexmark.all(kind) for kind in KINDS}
    assert {kind: frame.height for kind, frame in frames.items()} == counts
    times = pl.concat([frame["time"] for frame in frames.values()])
    assert sorted(times) == [number * 100 for number in range(events)]
    rounds = events // 50
    assert all(counts[kind] >= rounds * PER_ROUND[kind] for kind in KINDS)


@given(
    seed=st.integers(0, 1_000),
    rate=st.floats(0.5, 1e6),
    hot=st.floats(0, 1),
    open_auctions=st.integers(1, 500),
)
@settings(max_examples=40)
def test_events_refer_only_to_what_was_there_before(
    seed: int, rate: float, hot: float, open_auctions: int
) -> None:
    nexmark = Nexmark(
        events=5_000,
        seed=seed,
        events_per_s=rate,
        hot_auctions=hot,
        hot_sellers=hot,
        hot_bidders=hot,
        open_auctions=open_auctions,
        first_time_us=7,
    )
    persons, auctions, bids = (nexmark.all(kind) for kind in KINDS)
    for frame in (persons, auctions, bids):
        assert frame["time"].is_sorted()
        assert frame.null_count().sum_horizontal()[0] == 0
    sold = auctions.join(persons, left_on="seller", right_on="id", suffix="_of_seller")
    assert sold.height == auctions.height
    assert (sold["time_of_seller"] <= sold["time"]).all()
    assert (auctions["expires"] > auctions["time"]).all()
    offered = bids.join(auctions, left_on="auction", right_on="id", suffix="_of_auction")
    assert offered.height == bids.height
    assert (offered["time_of_auction"] <= offered["time"]).all()
    assert bids.join(persons, left_on="bidder", right_on="id").height == bids.height
    assert bids["price"].is_between(int(PRICES[0]), int(PRICES[-1])).all()


def share_of_the_commonest(bids: pl.DataFrame) -> float:
    """How large the hottest auction's share of the bids is, among those of its time."""
    near = bids.with_columns(stretch=pl.col("time") // 200_000)
    counts = near.group_by("stretch", "auction").len()
    hottest = counts.group_by("stretch").agg(pl.col("len").max() / pl.col("len").sum())
    return float(hottest["len"].mean())  # type: ignore[arg-type]


def test_the_skew_of_auctions_and_bidders_can_be_set() -> None:
    flat = Nexmark(events=100_000, hot_auctions=0.0, hot_bidders=0.0).all("bids")
    half = Nexmark(events=100_000, hot_auctions=0.5).all("bids")
    full = Nexmark(events=100_000, hot_auctions=1.0, hot_bidders=1.0).all("bids")
    assert share_of_the_commonest(flat) < 0.05 < 0.2 < share_of_the_commonest(half)
    assert full["auction"].n_unique() == 6_000 // 100
    assert full["bidder"].n_unique() == 2_000 // 100
    assert flat["auction"].n_unique() > 5_900


def test_the_rate_stretches_event_time_and_the_first_time_moves_it() -> None:
    slow = Nexmark(events=1_000, events_per_s=10.0).all("bids")
    quick = Nexmark(events=1_000, events_per_s=1_000.0).starting_at(5_000_000).all("bids")
    assert slow["time"].max() == 99_900_000
    assert quick["time"].max() == 5_999_000
    assert slow["price"].equals(quick["price"])


def test_wrong_settings_are_refused_with_a_reason() -> None:
    with pytest.raises(UserError, match="hot_auctions"):
        Nexmark(hot_auctions=1.5)
    with pytest.raises(UserError, match="events_per_s"):
        Nexmark(events_per_s=0)
    with pytest.raises(UserError, match="open_auctions"):
        Nexmark(open_auctions=0)
    with pytest.raises(UserError, match="persons, auctions, bids"):
        Nexmark(events=1).source("sellers")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="endless"):
        Nexmark().all("bids")
