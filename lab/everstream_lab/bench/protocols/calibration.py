"""How much a query can take under a protocol, and the load that is a share of it.

FERDiS loads each query to 80 % of what it takes under uncoordinated checkpoints every 10 s, and
proposes for later work to load it to 80 % of what it takes under each protocol. Input that comes
at a rate comes in batches of 10 ms: so large are the batches of the run at full speed, too.
"""

from dataclasses import replace

from everstream.engine.run import run
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.connectors.row import Untouched
from everstream_lab.bench.protocols.grid import Cell, Setting, checkpointing
from everstream_lab.bench.workloads.catalogue import QUERIES
from everstream_lab.bench.workloads.inputs import PACED_BATCH_S

SHARE = 0.8
FIRST_S, SECOND_S = 40.0, 3.0
"""How much of the usual input the first run has, and how long the second is to last."""


def most_per_s(cell: Cell, setting: Setting, master: str = "local[4]") -> float:
    """Records per second that the query takes under the protocol of a cell.

    A first run tells how many that are roughly, and so how large a batch of 10 ms is.
    """
    usual = setting.rate(QUERIES[cell.query])
    roughly = _full_speed(cell, setting, int(usual * FIRST_S), None, master)
    batch = max(1, int(roughly * PACED_BATCH_S))
    return _full_speed(cell, setting, int(roughly * SECOND_S), batch, master)


def loaded(cell: Cell, setting: Setting, per_s: float) -> Setting:
    """The setting with this many records per second."""
    usual = setting.rate(QUERIES[cell.query]) / setting.speed
    return replace(setting, speed=per_s / usual)


def _full_speed(cell: Cell, setting: Setting, total: int, batch: int | None, master: str) -> float:
    query = QUERIES[cell.query]
    pipeline = Pipeline(f"calibration-{cell.query}")
    inputs = setting.inputs(query, pipeline, total=max(total, 1), batch=batch)
    query.build(inputs).sink(Untouched(), name="untouched")
    checkpoint = checkpointing(cell.protocol, cell.interval_s, cell.log)
    result = run(pipeline, engine=cell.engine, checkpoint=checkpoint, master=master)
    return result.records_in / result.wall_s
