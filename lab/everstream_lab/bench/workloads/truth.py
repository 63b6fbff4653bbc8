"""The same questions in SQL, over all events at once: what every query's result is held against.

DuckDB answers them. It shares nothing with the pipelines but the events, so that an error in an
operator, a window or a recovery cannot hide in both.
"""

from collections.abc import Mapping
from typing import Any

import duckdb
import polars as pl


def ask(sql: str, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The answer to a question about these tables."""
    with duckdb.connect() as connection:
        for name, frame in tables.items():
            connection.register(name, frame.to_arrow())
        # The type stubs of DuckDB do not know that to_arrow_table gives a pyarrow.Table.
        table: Any = connection.sql(sql).to_arrow_table()
        answer = pl.from_arrow(table)
    assert isinstance(answer, pl.DataFrame)
    return answer


Q1 = "select auction, bidder, price * 0.908 as price, time from bids"

Q2 = "select auction, price from bids where auction % 123 = 0"

Q3 = """
select p.name, p.city, p.state, a.id as auction
from auctions a join persons p on a.seller = p.id
where a.category = 10 and p.state in ('OR', 'ID', 'CA')
"""

_WINNING = """
winning as (
    select a.id as auction, a.seller, a.category, a.expires, max(b.price) as price
    from auctions a join bids b on a.id = b.auction and b.time between a.time and a.expires
    group by all
)
"""

Q4 = f"""
with {_WINNING}
select category, auction, sum(price) over earlier ::double / count(*) over earlier as average
from winning
window earlier as (
    partition by category order by expires, auction
    rows between unbounded preceding and current row
)
"""

Q6 = f"""
with {_WINNING}
select seller, auction, sum(price) over ten ::double / count(*) over ten as average
from winning
window ten as (
    partition by seller order by expires, auction rows between 9 preceding and current row
)
"""


def sliding(table: str, size_us: int, every_us: int) -> str:
    """The rows of a table once for each window they are in, with `window_start`, `window_end`."""
    newest = f"time - ((time % {every_us}) + {every_us}) % {every_us}"
    return f"""(
        select *, {newest} - step * {every_us} as window_start, window_start + {size_us} as window_end
        from {table}, range(0, {-(-size_us // every_us)}) steps(step)
        where time < {newest} - step * {every_us} + {size_us}
    )"""


def bid_counts(size_us: int, every_us: int) -> str:
    """How many bids each auction has in each window."""
    return f"""(
        select window_end, auction, count(*) as count
        from {sliding("bids", size_us, every_us)} group by all
    )"""


def hot_items(size_us: int, every_us: int) -> str:
    """Query 5: the auctions with the most bids of each window."""
    return f"""
    with counted as {bid_counts(size_us, every_us)}
    select window_end, auction, count from counted
    qualify count = max(count) over (partition by window_end)
    """


def highest_bids(size_us: int) -> str:
    """Query 7: the highest bids of each period."""
    return f"""
    select auction, bidder, price, time, window_end
    from {sliding("bids", size_us, size_us)}
    qualify price = max(price) over (partition by window_end)
    """


def new_users(size_us: int) -> str:
    """Query 8: who came and opened an auction in the same period."""
    return f"""
    select distinct p.id, p.name, p.window_end
    from {sliding("persons", size_us, size_us)} p
    join {sliding("auctions", size_us, size_us)} a
    on p.id = a.seller and p.window_end = a.window_end
    """


# FERDiS's variants.

FERDIS_2 = "select auction, price from bids where auction % 2 = 0"


def ferdis_3(size_us: int, every_us: int) -> str:
    """The join of query 3 in sliding windows: a pair comes out of every window it shares."""
    return f"""
    select p.name, p.city, p.state, a.id as auction, a.window_end
    from {sliding("auctions", size_us, every_us)} a
    join {sliding("persons", size_us, every_us)} p
    on a.seller = p.id and a.window_end = p.window_end
    where a.category = 10 and p.state in ('OR', 'ID', 'CA')
    """


def ferdis_5(size_us: int, every_us: int) -> str:
    """Counts per auction and window, those that exceed all earlier ones of their auction."""
    return f"""
    with counted as {bid_counts(size_us, every_us)}
    select window_end, auction, count from counted
    qualify count > coalesce(max(count) over (
        partition by auction order by window_end
        rows between unbounded preceding and 1 preceding
    ), 0)
    """


def ferdis_6(size_us: int, every_us: int, price_us: int) -> str:
    """Bids joined with auctions in sliding windows, then the highest price of each auction, then
    the average of those of each seller, both in tumbling windows."""
    return f"""
    with pairs as (
        select b.auction, a.seller, b.price,
            ((b.window_end - 1) // {price_us} + 1) * {price_us} as window_end
        from {sliding("bids", size_us, every_us)} b
        join {sliding("auctions", size_us, every_us)} a
        on b.auction = a.id and b.window_end = a.window_end
    ),
    prices as (
        select window_end, auction, seller, max(price) as price from pairs group by all
    )
    select window_end, seller, sum(price)::double / count(*) as average from prices group by all
    """


WORD_COUNT = """
select word, row_number() over (partition by word order by time) as count from words
"""


def incremental_word_count(size_us: int) -> str:
    """The count of each window, and the total up to its end, of each word."""
    return f"""
    with counted as (
        select window_end, word, count(*) as count
        from {sliding("words", size_us, size_us)} group by all
    )
    select window_end, word, count, sum(count) over (
        partition by word order by window_end rows between unbounded preceding and current row
    )::bigint as total
    from counted
    """
