"""How much a query can take under a protocol, and the load that is a share of it.

FERDiS loads each query to 80 % of what it takes under uncoordinated checkpoints every 10 s, and
proposes for later work to load it to 80 % of what it takes under each protocol. What counts is what
can be taken at a steady rate, in batches of 10 ms: at full speed, in large batches, it is more.
"""

from dataclasses import replace
from statistics import linear_regression

from everstream.engine.run import run
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.connectors.row import Untouched
from everstream_lab.bench.protocols.grid import Cell, Setting, checkpointing
from everstream_lab.bench.protocols.measure import Measured, measure
from everstream_lab.bench.workloads.catalogue import QUERIES

SHARE = 0.8
FULL_SPEED_S = 40.0
"""How much of the usual input the run at full speed has."""
STEADY_S, WARMING_S = 5.0, 1.0
"""How long the run at a steady rate lasts, and what of it does not count."""


def most_per_s(cell: Cell, setting: Setting, master: str = "local[4]") -> float:
    """Records per second that the query takes under the protocol of a cell, at a steady rate.

    It is given as many as it takes at full speed. If it falls behind by a part of every second, it
    takes that part less.
    """
    offered = _full_speed(cell, setting, master)
    steady = replace(loaded(cell, setting, offered), run_s=STEADY_S, warm_up_s=WARMING_S)
    return taken(offered, growth_ms_per_s(measure(cell, steady, master, verify=False)))


def taken(offered_per_s: float, growth_ms: float) -> float:
    """What is taken of so much, if latency grows by so many ms in a second.

    >>> taken(1000.0, 250.0), taken(1000.0, -3.0)
    (750.0, 1000.0)
    """
    return offered_per_s * (1 - min(max(growth_ms / 1e3, 0.0), 0.99))


def growth_ms_per_s(one: Measured) -> float:
    """What latency grows by in a second, in ms: the slope of a line through its curve."""
    late = [
        (at_s, value)
        for at_s, value in zip(one.curve["at_s"], one.curve["mean_ms"], strict=True)
        if at_s is not None and value is not None
    ]
    return linear_regression(*zip(*late, strict=True)).slope if len(late) > 1 else 0.0


def loaded(cell: Cell, setting: Setting, per_s: float) -> Setting:
    """The setting with this many records per second."""
    usual = setting.rate(QUERIES[cell.query]) / setting.speed
    return replace(setting, speed=per_s / usual)


def _full_speed(cell: Cell, setting: Setting, master: str) -> float:
    query = QUERIES[cell.query]
    pipeline = Pipeline(f"calibration-{cell.query}")
    total = max(1, int(setting.rate(query) * FULL_SPEED_S))
    query.build(setting.inputs(query, pipeline, total=total)).sink(Untouched(), name="untouched")
    checkpoint = checkpointing(cell.protocol, cell.interval_s, cell.log)
    result = run(pipeline, engine=cell.engine, checkpoint=checkpoint, master=master)
    return result.records_in / result.wall_s
