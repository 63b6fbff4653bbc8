"""The runs of a grid put together: one row per query, protocol and interval, beside the paper's."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median, pstdev
from typing import Any

from everstream.core.registry import named
from everstream.pipeline.checkpointing import CommunicationInduced
from everstream_lab.bench.papers import ferdis_paper
from everstream_lab.bench.protocols.grid import PAPER_NAMES, Setting
from everstream_lab.bench.protocols.measure import Measured

NONE = "-"


@dataclass(frozen=True)
class Row:
    """All repeats of one cell; figures are medians."""

    query: str
    way: str
    interval_s: float
    calm: tuple[Measured, ...]
    killed: tuple[Measured, ...]

    @property
    def all(self) -> tuple[Measured, ...]:
        return (*self.calm, *self.killed)

    @property
    def protocol(self) -> str:
        return self.all[0].cell.protocol

    @property
    def exact(self) -> bool:
        return self.all[0].cell.exact

    @property
    def wrong(self) -> int:
        """Rows of output that were lost, doubled or untrue."""
        return sum(run.lost + run.duplicated + run.untrue for run in self.all)

    def of_paper(self, table: dict[ferdis_paper.PaperRun, Any], setting: Setting) -> Any:
        """The paper's figures for the same thing, if it has any."""
        name = PAPER_NAMES.get(self.protocol)
        query = "nexmark-2" if self.query == "nexmark-2-half" else self.query
        interval_s = round(self.interval_s * setting.factor)
        return table.get(ferdis_paper.PaperRun(query, name or "", interval_s))


def rows_of(runs: Iterable[Measured]) -> list[Row]:
    groups: dict[tuple[str, str, float], list[Measured]] = {}
    for run in runs:
        groups.setdefault((run.cell.query, run.cell.way, run.cell.interval_s), []).append(run)
    return [
        Row(
            *where,
            tuple(run for run in measured if not run.cell.failure),
            tuple(run for run in measured if run.cell.failure),
        )
        for where, measured in groups.items()
    ]


def calm_table(rows: Sequence[Row], setting: Setting) -> tuple[list[str], list[list[str]]]:
    """Without failures: throughput, latency, checkpoints."""
    head = [
        *("query", "protocol", "every s", "in/s", "out/s", "mean ms", "±", "p95 ms", "p99 ms"),
        *("regular", "forced", "KB", "log KB", "take ms", "±", "durable ms"),
        *("paper: mean", "±", "p95", "p99", "regular", "forced", "take", "±"),
    ]
    lines = []
    for row in rows:
        if not row.calm:
            continue
        runs = row.calm
        latency = row.of_paper(ferdis_paper.LATENCY, setting)
        taken = row.of_paper(ferdis_paper.CHECKPOINTS, setting)
        lines.append(
            [
                *(row.query, row.way, f"{row.interval_s:g}", f"{runs[0].input_per_s:,.0f}"),
                *(_middle(runs, lambda run: run.output_per_s, ",.0f"),),
                *(_middle(runs, lambda run: run.mean_ms, ".1f"),),
                *(_middle(runs, lambda run: run.deviation_ms, ".1f"),),
                *(_middle(runs, lambda run: run.p95_ms, ".1f"),),
                *(_middle(runs, lambda run: run.p99_ms, ".1f"),),
                *(_middle(runs, lambda run: run.regular, ".0f"),),
                *(_middle(runs, lambda run: run.forced, ".0f"),),
                *(_middle(runs, lambda run: run.size_bytes / 1e3, ",.0f"),),
                *(_middle(runs, lambda run: run.log_bytes / 1e3, ",.0f"),),
                *(_middle(runs, lambda run: run.take_ms, ".1f"),),
                *(_middle(runs, lambda run: run.take_deviation_ms, ".1f"),),
                *(_middle(runs, lambda run: run.durable_ms, ".1f"),),
                *_figures(latency, "mean_ms", "deviation_ms", "p95_ms", "p99_ms"),
                *_figures(taken, "regular", "forced", "take_ms", "deviation_ms"),
            ]
        )
    return head, lines


def killed_table(rows: Sequence[Row], setting: Setting) -> tuple[list[str], list[list[str]]]:
    """With one kill: how it came back, and what it cost. The paper's times are scaled."""
    head = [
        *("query", "protocol", "every s", "back s", "restore s", "rollback s", "given up"),
        *("went back", "replayed", "lost", "doubled", "untrue"),
        *("lost messages", "±", "lost throughput s"),
        *("paper: back", "±", "rollback", "±", "lost messages", "±", "lost throughput s"),
    ]
    lines = []
    for row in rows:
        if not row.killed:
            continue
        runs = row.killed
        back = row.of_paper(ferdis_paper.RECOVERY, setting)
        loss = row.of_paper(ferdis_paper.LOSS, setting)
        lines.append(
            [
                *(row.query, row.way, f"{row.interval_s:g}"),
                _middle(runs, lambda run: run.recovery_s, ".2f"),
                _middle(runs, lambda run: run.restore_s, ".2f"),
                _middle(runs, lambda run: run.rollback_s, ".2f"),
                _middle(runs, lambda run: run.checkpoints_back, ".0f"),
                f"{runs[0].went_back} of {runs[0].shards}",
                _middle(runs, lambda run: run.replayed, ",.0f"),
                *(str(sum(getattr(run, n) for run in runs)) for n in ("lost", "duplicated")),
                str(sum(run.untrue for run in runs)),
                _middle(runs, lambda run: run.lost_messages, ",.0f"),
                f"{pstdev(run.lost_messages for run in runs):,.0f}",
                _middle(runs, _lost_s, ".2f"),
                *(
                    NONE if back is None else f"{getattr(back, name) / setting.factor:.1f}"
                    for name in BACK
                ),
                *_figures(loss, "lost", "lost_deviation"),
                NONE if loss is None else f"{loss.lost_s:.1f}",
            ]
        )
    return head, lines


BACK = ("recovery_s", "recovery_deviation_s", "rollback_s", "rollback_deviation_s")


def _lost_s(run: Measured) -> float | None:
    """The lost messages as seconds of output before the kill."""
    return run.lost_messages / run.output_per_s if run.output_per_s else None


def _figures(of_paper: Any, *names: str) -> list[str]:
    """The paper's figures, if it has any for this row."""
    if of_paper is None:
        return [NONE] * len(names)
    return [f"{getattr(of_paper, name):,.0f}" for name in names]


def verdicts(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """What must hold over the whole grid, and whether it does."""
    verdicts = []
    exact = [row for row in rows if row.exact]
    wrong = sum(row.wrong for row in exact)
    runs = sum(len(row.all) for row in exact)
    if runs:
        verdicts.append((f"exactly once: {wrong} rows wrong in {runs} runs", wrong == 0))
    acyclic = [r for row in rows for r in row.all if row.query != "nhop"]
    induced = [
        run for run in acyclic if isinstance(named(run.cell.protocol).choice, CommunicationInduced)
    ]
    if induced:
        forced = sum(run.forced for run in induced)
        verdicts.append((f"without a cycle nothing is forced: {forced} forced", forced == 0))
    for row in rows:
        if row.query == "nhop" and row.way == "hmnr" and row.killed:
            worst_s = max(run.rollback_s or 0.0 for run in row.killed)
            text = f"NHop, HMNR every {row.interval_s:g} s: rollback {worst_s:.2f} s"
            verdicts.append((f"{text}, at most two intervals", worst_s <= 2 * row.interval_s))
    domino = _domino(rows)
    return [*verdicts, domino] if domino is not None else verdicts


def _domino(rows: Sequence[Row]) -> tuple[str, bool] | None:
    """How much further uncoordinated checkpoints fall back on a cycle than induced ones."""
    worst_s = {
        name: max(run.rollback_s or 0.0 for row in chosen for run in row.killed)
        for name in ("uncoordinated", "hmnr")
        if (chosen := [r for r in rows if (r.query, r.way) == ("nhop", name) and r.killed])
    }
    if len(worst_s) < 2:
        return None
    uncoordinated_s, hmnr_s = worst_s["uncoordinated"], worst_s["hmnr"]
    text = f"NHop, the domino: uncoordinated went back {uncoordinated_s:.2f} s, HMNR {hmnr_s:.2f} s"
    return text, uncoordinated_s > hmnr_s


def _middle(runs: Sequence[Measured], figure: Callable[[Measured], float | None], form: str) -> str:
    values = [value for value in map(figure, runs) if value is not None]
    return format(median(values), form) if values else NONE
