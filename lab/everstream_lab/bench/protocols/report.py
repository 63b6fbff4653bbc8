"""The report of a grid as one HTML page: verdicts, curves around the kill, tables."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from everstream.demo.timeline import HtmlReport
from everstream_lab.bench.curves import Disturbed, draw_curves
from everstream_lab.bench.latency import Curve, Floats
from everstream_lab.bench.protocols.costs import Costs
from everstream_lab.bench.protocols.grid import Setting
from everstream_lab.bench.protocols.measure import AROUND_S, STEP_S, Measured
from everstream_lab.bench.protocols.summary import calm_table, killed_table, rows_of, verdicts
from everstream_lab.bench.recovery.recovery_time import Recovery
from everstream_lab.bench.workloads.catalogue import QUERIES


def write_report(
    runs: Sequence[Measured], setting: Setting, costs: Costs | None, path: Path
) -> None:
    rows = rows_of(runs)
    page = HtmlReport("Checkpoint protocols compared")
    page.text(
        f"FERDiS's queries on this machine. Its times are divided by {setting.factor:g}: "
        f"checkpoints, windows, and runs of {setting.run_s:g} s with a SIGKILL after "
        f"{setting.kill_s:g} s. Latency counts from the moment a record was due. Every output is "
        "held against plain SQL over the same events."
    )
    for text, good in verdicts(rows):
        page.verdict(text, good)
    if costs is not None:
        page.verdict(f"durable logs cost {costs.log_cost:.1%}, NEXMark 2", costs.log_cost <= 0.10)
        page.verdict(f"HMNR's vectors cost {costs.cic_cost:.1%}, NHop", costs.cic_cost <= 0.05)
    with TemporaryDirectory() as folder:
        for query, interval_s in dict.fromkeys((row.query, row.interval_s) for row in rows):
            chosen = [
                run
                for run in runs
                if (run.cell.query, run.cell.interval_s) == (query, interval_s)
                and run.cell.failure
                and run.cell.repeat == 0
            ]
            if chosen:
                picture = Path(folder) / f"{query}-{interval_s:g}.png"
                title = f"{QUERIES[query].title}, checkpoints every {interval_s:g} s, one kill"
                draw(chosen, picture, title)
                page.heading(title)
                page.picture(picture, title)
    page.heading("Without failures")
    page.table(*calm_table(rows, setting))
    page.heading("With one kill")
    page.text("The paper's seconds are divided by the same factor.")
    page.table(*killed_table(rows, setting))
    page.write(path)


def draw(runs: Sequence[Measured], path: Path, title: str) -> None:
    """Latency and throughput around the kill, a column per protocol."""
    columns = [
        Disturbed(
            run.cell.way,
            Curve(
                _floats(run.curve["at_s"]),
                STEP_S,
                _floats(run.curve["records_per_s"]),
                _floats(run.curve["mean_ms"]) / 1e3,
                _floats(run.curve["p99_ms"]) / 1e3,
            ),
            0.0,
            Recovery(run.recovery_s, np.nan, np.nan, np.nan),
        )
        for run in runs
    ]
    before_s, after_s = AROUND_S
    draw_curves(columns, path, title, step_s=STEP_S, before_s=before_s, after_s=after_s)


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], np.float64)
