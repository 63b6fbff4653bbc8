"""Toll Processing: vehicles report their speed on road segments; congestion sets the toll.

Unique vehicles are really counted: a table remembers which vehicle was seen on which
segment, and the segment's count grows only the first time. Reports with an impossible
speed abort.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from everstream.transactions.definition import ABORT, transaction
from everstream.transactions.tables import Table
from everstream_lab.workloads.transactions.shape import Shape, Workload, choose, draw_keys

VEHICLES = 1_000
FASTEST_KMH = 250

speeds = Table("speeds", value={"total_kmh": "int64", "reports": "int64"}, initial=0)
seen = Table("seen", value="int8", initial=0)
vehicles = Table("vehicles", value="int64", initial=0)


@transaction(
    speed=speeds.key("segment"),
    known=seen.key("visit"),
    count=vehicles.key("segment"),
    writes=("speed", "known", "count"),
)
def report(speed, known, count, kmh):  # type: ignore[no-untyped-def]
    if kmh < 0 or kmh > FASTEST_KMH:
        return ABORT
    return (speed.total_kmh + kmh, speed.reports + 1), 1, count + (1 - known)


def _generate(rng: np.random.Generator, count: int, shape: Shape) -> dict[str, Any]:
    segment = draw_keys(rng, count, shape.keys, shape.skew)
    vehicle = rng.integers(0, VEHICLES, count)
    kmh = rng.integers(5, 131, count)
    return {
        "segment": segment,
        "vehicle": vehicle,
        "visit": segment * VEHICLES + vehicle,
        "kmh": np.where(choose(rng, count, shape.aborts), -1, kmh),
    }


def tolls(outcomes: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """The toll of each committed report, from what its transaction read.

    Linear Road's rule: free while the segment is fast or empty, then rising with the
    square of the vehicles above fifty.
    """
    vehicles_now = pl.col("count") + 1 - pl.col("known").cast(pl.Int64)
    mean_kmh = (pl.col("speed.total_kmh") + pl.col("kmh")) / (pl.col("speed.reports") + 1)
    congested = (mean_kmh < 64) & (vehicles_now > 50)
    toll = pl.when(congested).then(2 * (vehicles_now - 50) ** 2).otherwise(0)
    return (
        pl.concat([outcomes, events.select("segment", "vehicle", "kmh")], how="horizontal")
        .filter(pl.col("committed"))
        .select("event", "segment", "vehicle", toll=toll)
    )


def toll_processing(shape: Shape | None = None) -> Workload:
    """Two hundred segments, some busier than others; two reports in five are impossible."""
    default = replace(Shape(), keys=200, skew=0.6, multi_partition=0.0, aborts=0.4)
    return Workload("toll", (speeds, seen, vehicles), (report,), shape or default, _generate)
