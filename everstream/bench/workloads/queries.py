"""NEXMark's queries 1 to 8 as pipelines: each is a function from its inputs to its result stream.

The questions are those of the published benchmark in the form its SQL implementations share; the
periods of queries 5, 7 and 8 are theirs too (ten seconds, query 5 sliding by two). Where a result
depends on an order, it is the order of event time, so that it can be checked against a table.
"""

from __future__ import annotations

from typing import Any

import polars as pl

import everstream as es
from everstream.bench.workloads.averages import CategoryAverage, SellerAverage
from everstream.bench.workloads.inputs import DUE, Inputs
from everstream.bench.workloads.leaders import Leaders
from everstream.bench.workloads.local_items import LocalItems
from everstream.bench.workloads.winning_bids import WinningBids
from everstream.pipeline.batch import Batch
from everstream.pipeline.stream import Stream
from everstream.pipeline.windows import Window

EURO_PER_DOLLAR = 0.908
LOCAL = pl.col("state").is_in(["OR", "ID", "CA"])
WANTED_CATEGORY = pl.col("category") == 10
SECOND_US = 1_000_000
PERIOD_S = 10
HOT_EVERY_S = 2


def currency(inputs: Inputs) -> Stream:
    """Query 1: every bid with its price in euros."""
    bids = inputs.cut(inputs.bids())
    return bids.with_columns(pl.col("price") * EURO_PER_DOLLAR, name="euros")


def selection(inputs: Inputs, divisor: int = 123) -> Stream:
    """Query 2: the bids on auctions whose number is divisible by 123."""
    bids = inputs.cut(inputs.bids())
    chosen = bids.filter(pl.col("auction") % divisor == 0, name="filter")
    return chosen.select("auction", "price", *inputs.due, name="select")


def local_items(inputs: Inputs) -> Stream:
    """Query 3: who in Oregon, Idaho or California sells in category 10; a join without end."""
    persons = inputs.persons().filter(LOCAL, name="local")
    persons = persons.select(
        pl.col("id").alias("seller"), "name", "city", "state", *inputs.due, name="sellers"
    )
    auctions = inputs.auctions().filter(WANTED_CATEGORY, name="wanted")
    auctions = auctions.select("seller", pl.col("id").alias("auction"), *inputs.due, name="items")
    both = persons.union(auctions).key_by("seller")
    return both.process(LocalItems(), name="join", shards=inputs.shards)


def winning_bids(inputs: Inputs) -> Stream:
    """The highest bid of each auction, when it closes; auctions without a bid give nothing."""
    auctions = inputs.auctions().event_time("time", name="auction_times")
    auctions = auctions.select(
        pl.col("id").alias("auction"),
        *("seller", "category", "time", "expires", *inputs.due),
        name="opened",
    )
    bids = inputs.bids().event_time("time", name="bid_times")
    bids = bids.select("auction", "price", "time", *inputs.due, name="offers")
    both = auctions.union(bids).key_by("auction")
    return both.process(WinningBids(), name="winning", shards=inputs.shards)


def category_average(inputs: Inputs) -> Stream:
    """Query 4: the average winning price of each category, whenever an auction closes."""
    prices = winning_bids(inputs).key_by("category")
    return prices.process(CategoryAverage(), name="average", shards=inputs.shards)


def hot_items(inputs: Inputs) -> Stream:
    """Query 5: the auctions with the most bids in the last ten seconds, every two seconds."""
    window = es.Sliding(f"{PERIOD_S}s", every=f"{HOT_EVERY_S}s")
    counts = bid_counts(inputs, window)
    leaders = counts.on_demand().process(Leaders("count"), name="leaders", shards=1)
    return leaders.select("window_end", "auction", "count", *inputs.due, name="hot")


def bid_counts(inputs: Inputs, window: Window) -> Stream:
    """How many bids each auction has in each window, when the window is over."""
    bids = (
        inputs.bids()
        .event_time("time", name="bid_times")
        .select("auction", "time", *inputs.due, name="offers")
    )
    wanted: dict[str, Any] = {"count": es.count()} | ({DUE: es.max(DUE)} if inputs.due else {})
    windows = bids.key_by("auction").window(window)
    return windows.aggregate(**wanted, name="counts", shards=inputs.shards)


def seller_average(inputs: Inputs) -> Stream:
    """Query 6: the average of each seller's last ten winning prices, whenever one is sold."""
    prices = winning_bids(inputs).key_by("seller")
    return prices.process(SellerAverage(), name="average", shards=inputs.shards)


def highest_bids(inputs: Inputs) -> Stream:
    """Query 7: the highest bids of every ten seconds.

    Each shard finds its own, so that only those few are sent to the one that compares them all.
    """
    size_us = PERIOD_S * SECOND_US
    end = (pl.col("time") // size_us + 1) * size_us
    bids = (
        inputs.bids()
        .event_time("time", name="bid_times")
        .with_columns(window_end=end, name="period")
    )
    each = inputs.cut(bids).process(Leaders("price"), name="highest_here")
    return each.on_demand().process(Leaders("price"), name="highest", shards=1)


def new_users(inputs: Inputs) -> Stream:
    """Query 8: who came and opened an auction within the same ten seconds."""
    persons = inputs.persons().event_time("time", name="person_times")
    auctions = inputs.auctions().event_time("time", name="auction_times")
    both = persons.window_join(
        auctions,
        on="id",
        other_on="seller",
        window=es.Tumbling(f"{PERIOD_S}s"),
        name="join",
        shards=inputs.shards,
    )
    return both.map_batches(_once, name="new_users")


def _once(batch: Batch) -> Batch:
    """Each person once, however many auctions it opened: the join gives a window in one batch."""
    assert isinstance(batch, pl.DataFrame)
    due = [pl.max_horizontal(DUE, f"{DUE}_right").max().alias(DUE)] if DUE in batch.columns else []
    return batch.group_by("id", "name", "window_end", maintain_order=True).agg(due)
