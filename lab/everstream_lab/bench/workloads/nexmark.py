"""The NEXMark generator: persons, auctions and bids of an online auction house.

Event number n of the stream is a person if n % 50 is 0, an auction if it is 1, 2 or 3, and a bid
otherwise: the published proportions 1:3:46. It happens at `first_time_us + n / events_per_s`.
Each kind is a separate source, because columns of three kinds in one frame would be mostly
empty; the three agree because all of them are made from the event number and the seed alone.

As in the published generator, bids go to the auctions opened last, and a share of them to few hot
ones; prices spread over six powers of ten; an auction stays open for about as long as it takes to
open `open_auctions` more. The filler strings of the published records are left out.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import polars as pl

from everstream.connectors.generate.sources import FromFunction
from everstream.errors import UserError
from everstream_lab.bench.workloads.nexmark_kernel import fill_bids
from everstream_lab.bench.workloads.randomness import Bits, Integers, below, bits_of, hash_start

Kind: TypeAlias = Literal["persons", "auctions", "bids"]
KINDS: tuple[Kind, ...] = ("persons", "auctions", "bids")
PER_ROUND: dict[Kind, int] = {"persons": 1, "auctions": 3, "bids": 46}
ROUND = 50
FIRST_IN_ROUND: dict[Kind, int] = {"persons": 0, "auctions": 1, "bids": 4}

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    ("Phoenix", "Tucson"),
    ("Los Angeles", "San Francisco"),
    ("Boise", "Nampa"),
    ("Portland", "Bend"),
    ("Seattle", "Kent"),
    ("Cheyenne", "Casper"),
)
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter")
LAST_NAMES = (
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
)
HOT_PARTS = 1024
FIRST_CATEGORY, CATEGORIES = 10, 5
PRICES = np.round(10.0 ** (np.arange(4096) / 4096 * 6.0) * 100).astype(np.int64)
"""From 1 to a million, in cents, evenly spread on a logarithmic scale."""

_SALTS: dict[Kind, int] = {"persons": 1, "auctions": 2, "bids": 3}
_PLACES = pl.DataFrame(
    [(city, state) for state, cities in zip(STATES, CITIES, strict=True) for city in cities],
    schema=["city", "state"],
    orient="row",
)
_NAMES = pl.Series("name", [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])


@dataclass(frozen=True)
class Nexmark:
    """A stream of `events` events, all kinds together; endless if None. Equal ones are equal."""

    events: int | None = None
    seed: int = 0
    events_per_s: float = 10_000.0
    """How many happen in a second of event time; how fast they are read is another matter."""
    first_time_us: int = 0
    open_auctions: int = 100
    """About this many auctions are open at a time."""
    active_persons: int = 1_000
    """Sellers and bidders are among this many most recent persons."""
    hot_auctions: float = 0.5
    """The share of bids that go to the hot auction of the moment: the skew."""
    hot_bidders: float = 0.75
    hot_sellers: float = 0.75

    def __post_init__(self) -> None:
        for name in ("hot_auctions", "hot_bidders", "hot_sellers"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}={getattr(self, name)} must be a share, from 0 to 1.")
        # A choice among them has 18 and 14 random bits.
        for name, most in (("open_auctions", 1 << 18), ("active_persons", 1 << 14)):
            if not 1 <= getattr(self, name) <= most:
                raise UserError(f"{name}={getattr(self, name)} must be from 1 to {most}.")
        if self.events_per_s <= 0:
            raise UserError(f"events_per_s={self.events_per_s} must be positive.")

    def count(self, kind: Kind) -> int | None:
        """How many of the events are of this kind."""
        if self.events is None:
            return None
        rounds, rest = divmod(self.events, ROUND)
        begun = min(max(rest - FIRST_IN_ROUND[kind], 0), PER_ROUND[kind])
        return rounds * PER_ROUND[kind] + begun

    def source(self, kind: Kind, batch: int = 65_536) -> FromFunction:
        """The source of one kind. `batch` counts events of all kinds, so that a batch of one
        kind covers as much event time as a batch of another."""
        if kind not in PER_ROUND:
            raise UserError(f"kind={kind!r}: say one of {', '.join(KINDS)}.")
        rows = max(batch * PER_ROUND[kind] // ROUND, 1)
        return FromFunction(getattr(self, kind), total=self.count(kind), batch=rows)

    def all(self, kind: Kind) -> pl.DataFrame:
        """Every event of one kind in one frame: what the truth is computed from."""
        count = self.count(kind)
        if count is None:
            raise UserError("an endless stream has no end to wait for; give events=.")
        made: pl.DataFrame = getattr(self, kind)(0, count)
        return made

    def starting_at(self, first_time_us: int) -> "Nexmark":
        """The same events, at other times."""
        return replace(self, first_time_us=first_time_us)

    def persons(self, start: int, stop: int) -> pl.DataFrame:
        """Persons number start to stop - 1."""
        number, event, bits = self._numbered("persons", start, stop)
        place = _PLACES[below(bits, 0, 16, len(_PLACES))]
        return pl.DataFrame(
            [
                pl.Series("id", number),
                _NAMES[below(bits, 16, 16, len(_NAMES))],
                place["city"],
                place["state"],
                pl.Series("time", self._time_us(event)),
            ]
        )

    def auctions(self, start: int, stop: int) -> pl.DataFrame:
        """Auctions number start to stop - 1."""
        number, event, bits = self._numbered("auctions", start, stop)
        last_person = event // ROUND
        hot = below(bits, 0, 10, HOT_PARTS) < round(self.hot_sellers * HOT_PARTS)
        among = np.minimum(last_person + 1, self.active_persons).view(np.uint64)
        recent = last_person - below(bits, 10, 20, among)
        # The hot one of the moment leads until a hundred more have come.
        seller = np.where(hot, last_person // 100 * 100, recent)
        time_us = self._time_us(event)
        # Twice the time in which the next `open_auctions` are opened, so that the mean is once.
        longest_us = int(2 * self.open_auctions * ROUND / 3 * 1e6 / self.events_per_s)
        return pl.DataFrame(
            {
                "id": number,
                "seller": seller,
                "category": FIRST_CATEGORY + below(bits, 30, 8, CATEGORIES),
                "reserve": PRICES[below(bits, 38, 12, 4096)],
                "time": time_us,
                "expires": time_us + 1 + below(bits, 50, 14, max(longest_us, 1)),
            }
        )

    def bids(self, start: int, stop: int) -> pl.DataFrame:
        """Bids number start to stop - 1."""
        columns = fill_bids(
            start,
            stop,
            np.uint64(hash_start(self.seed, _SALTS["bids"])),
            self.open_auctions,
            self.active_persons,
            round(self.hot_auctions * HOT_PARTS),
            round(self.hot_bidders * HOT_PARTS),
            PRICES,
            self.first_time_us,
            1e6 / self.events_per_s,
        )
        names = ("auction", "bidder", "price", "time")
        return pl.DataFrame([pl.Series(*pair) for pair in zip(names, columns, strict=True)])

    def _numbered(self, kind: Kind, start: int, stop: int) -> tuple[Integers, Integers, Bits]:
        """The numbers of the records, of their events, and their random bits."""
        number = np.arange(start, stop, dtype=np.int64)
        per_round = PER_ROUND[kind]
        event = number // per_round
        event *= ROUND - per_round
        event += number
        event += FIRST_IN_ROUND[kind]
        return number, event, bits_of(self.seed, _SALTS[kind], number)

    def _time_us(self, event: Integers) -> Integers:
        apart_us = 1e6 / self.events_per_s
        if apart_us == int(apart_us):
            return event * int(apart_us) + self.first_time_us
        return (event * apart_us).astype(np.int64) + self.first_time_us
