"""Each row in turn, ours and the bare client one after the other, several times; and the ratios.

A side's rate is records by the seconds it took: ours on the run's own clock, from the first shard
running to the last output committed, so that Spark's start is not in it; the bare client's from
its first call to its last sync. A ratio is taken round by round, because a machine that is slow
for a while is slow for both; the median counts, the least and the greatest are its spread.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from everstream.engine.run import run
from everstream.errors import RunFailed
from everstream.pipeline.checkpointing import Coordinated
from everstream_lab.bench.connectors.row import EVERY_S, Place, Row
from everstream_lab.bench.report import Figure, Progress, Report, Target, at_least, shown

GOAL = 0.8
"""Ours by the bare client's rate: what each row should reach."""
WARM_UP = 20
"""The first run, which is not measured, has one in this many of the records."""


@dataclass
class Compared:
    """What the rounds of one row gave."""

    row: type[Row]
    records: int
    ours_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)

    @property
    def ours_per_s(self) -> float:
        return self.records / median(self.ours_s)

    @property
    def bare_per_s(self) -> float:
        return self.records / median(self.bare_s)

    @property
    def ratios(self) -> list[float]:
        """Round by round: our rate by the bare client's."""
        return [bare / own for own, bare in zip(self.ours_s, self.bare_s, strict=True)]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def goal(self) -> Target:
        if self.row.goal_per_s is not None:
            return at_least(self.row.goal_per_s)
        return at_least(GOAL, of="ratio")

    def figure(self) -> Figure:
        """Our rate; its ratio to the bare client's is the median of the rounds."""
        return Figure(
            self.row.name,
            round(self.ours_per_s),
            "records/s",
            self.goal,
            ratio=round(self.ratio, 3),
            repetitions=tuple(round(self.records / took_s) for took_s in self.ours_s),
            beside=f"{self.row.bare_client}: {shown(self.bare_per_s)} records/s",
        )


def measure(
    rows: Sequence[type[Row]],
    servers: Mapping[str, str],
    *,
    rounds: int = 3,
    scale: float = 1.0,
    progress: Progress = lambda text: None,
) -> list[Compared]:
    """All rows, each with `scale` times its own number of records."""
    return [
        _measure_row(row, servers, rounds, max(1, int(row.records * scale)), progress)
        for row in rows
    ]


def _measure_row(
    kind: type[Row],
    servers: Mapping[str, str],
    rounds: int,
    records: int,
    progress: Progress,
) -> Compared:
    compared = Compared(kind, records)
    with tempfile.TemporaryDirectory(prefix="everstream-connectors-") as name:
        folder = Path(name)
        progress(f"{kind.name}: making its input")
        (folder / "small").mkdir()
        small = kind(max(1, records // WARM_UP), Place(folder / "small", servers))
        row = kind(records, Place(folder, servers))
        for each in (small, row):
            each.make()
        _timed(small, folder / "ours-0", bare=False)
        _timed(small, folder / "bare-0", bare=True)
        for number in range(1, rounds + 1):
            progress(f"{kind.name}: round {number} of {rounds}")
            compared.ours_s.append(_timed(row, folder / f"ours-{number}", bare=False))
            compared.bare_s.append(_timed(row, folder / f"bare-{number}", bare=True))
    return compared


def _timed(row: Row, folder: Path, *, bare: bool) -> float:
    """How long one side took; RunFailed if not every record got where it should."""
    folder.mkdir()
    if bare:
        started_s = time.perf_counter()
        moved = row.bare(folder)
        took_s = time.perf_counter() - started_s
    else:
        result = run(
            row.pipeline(folder),
            checkpoint=Coordinated(every=EVERY_S),
            master=f"local[{row.slots}]",
        )
        moved, took_s = result.records_out, result.wall_s
    arrived = row.arrived(folder)
    records = moved if arrived is None else arrived
    if records != row.total:
        side = "the bare client" if bare else "everstream"
        raise RunFailed(f"{row.name}: {side} moved {records:,} records and not {row.total:,}")
    return took_s


def report_of(compared: Sequence[Compared], left_out: Mapping[str, str]) -> Report:
    details = {
        "ratios": {one.row.name: [round(ratio, 3) for ratio in one.ratios] for one in compared},
        "left_out": dict(left_out),
    }
    figures = [one.figure() for one in compared]
    return Report("connectors", figures, {"every_s": EVERY_S}, details)
