"""FERDiS: tables 3 to 6 and figures 22 to 30, from runs of the grid of protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from everstream_lab.bench.papers import ferdis_paper
from everstream_lab.bench.protocols.grid import PAPER_NAMES, Cell, Setting
from everstream_lab.bench.protocols.measure import measure
from everstream_lab.reproduce.exhibit import (
    Exhibit,
    Found,
    Panel,
    Point,
    Quantities,
    Statement,
    ratio,
)
from everstream_lab.reproduce.experiments import Effort, Experiment, Step, Tell

PAPER = "ferdis"
QUERIES = {
    "nexmark-2": "nexmark-2-half",
    "nexmark-3-small": "nexmark-3-small",
    "nexmark-3-large": "nexmark-3-large",
    "nexmark-5-small": "nexmark-5-small",
    "nexmark-5-large": "nexmark-5-large",
    "nexmark-6-small": "nexmark-6-small",
    "wordcount-small": "wordcount-small",
    "wordcount-large": "wordcount-large",
    "nhop": "nhop",
}
"""The paper's query -> ours."""
CYCLIC = "nhop"
QUICK_QUERIES = ("nexmark-2", "wordcount-small", "nhop")
QUICK_CALM = ("nexmark-3-large", "nexmark-5-small")
"""In a quick run: those with and without a kill, and those without only."""
ON_DISK, IN_MEMORY = "", ", logs in memory"
LATENCIES = {"mean": "mean_ms", "95th": "p95_ms", "99th": "p99_ms", "deviation": "deviation_ms"}


def name_of(query: str, protocol: str, interval_s: float, log: str = ON_DISK) -> str:
    """As the paper names a configuration: `nhop, UC @ 10s`."""
    return f"{query}, {PAPER_NAMES[protocol]} @ {interval_s:g}s{log}"


def _run(cell: Cell, query: str, setting: Setting, folder: Path, tell: Tell) -> Quantities:
    one = measure(cell, setting)
    log = IN_MEMORY if cell.log == "memory" else ON_DISK
    name = name_of(query, cell.protocol, cell.interval_s * setting.factor, log)
    measured: dict[str, list[Point]] = {
        "wrong rows": [(name, "all", one.lost + one.duplicated + one.untrue)]
    }
    if cell.failure:
        measured["lost"] = [(name, "messages", one.lost_messages)]
        if one.recovery_s is not None:
            measured["recovery"] = [(name, "s", one.recovery_s * setting.factor)]
        if one.rollback_s is not None:
            measured["rollback"] = [(name, "s", one.rollback_s * setting.factor)]
    else:
        measured["latency"] = [
            (name, kind, getattr(one, field)) for kind, field in LATENCIES.items()
        ]
        measured["checkpoints"] = [
            (name, "regular", one.regular),
            (name, "forced", one.forced),
            (name, "take, ms", one.take_ms),
        ]
    prefix = "kill" if cell.failure else "calm"
    for quantity, column in (("throughput", "records_per_s"), ("latency", "mean_ms")):
        measured[f"{prefix}: {quantity} over time"] = [
            (name, at_s, value)
            for at_s, value in zip(
                one.curve.get("at_s", ()), one.curve.get(column, ()), strict=True
            )
            if at_s is not None and value is not None
        ]
    return {quantity: points for quantity, points in measured.items() if points}  # fmt: skip


def _steps(query: str, effort: Effort) -> Sequence[Step]:
    quick = effort.quick
    setting = Setting(run_s=7.0, kill_s=3.5, warm_up_s=1.5) if quick else Setting()
    intervals_s = (10.0,) if quick else (10.0, 15.0)
    failures = (False, True) if not quick or query in QUICK_QUERIES else (False,)
    if quick and query not in (*QUICK_QUERIES, *QUICK_CALM):
        return ()
    protocols = [name for name in PAPER_NAMES if name != "aligned" or query != CYCLIC]
    cells = [
        Cell(QUERIES[query], protocol, interval_s / setting.factor, failure)
        for interval_s in intervals_s
        for failure in failures
        for protocol in protocols
    ]
    cells += [
        Cell(QUERIES[query], "uncoordinated", interval_s / setting.factor, True, log="memory")
        for interval_s in intervals_s
        if True in failures and query != CYCLIC
    ]
    return [
        Step(
            "-".join((cell.way, f"{cell.interval_s:g}s", "kill" if cell.failure else "calm"))
            .replace(" ", "-").replace("(", "").replace(")", ""),
            number, setting.run_s + 6.0, partial(_run, cell, query, setting),
        )
        for number in range(1 if quick else effort.repeats)
        for cell in cells
    ]  # fmt: skip


EXPERIMENTS = tuple(
    Experiment(
        f"ferdis-{query}",
        PAPER,
        f"everstream bench protocols --query {ours}",
        partial(_steps, query),
    )
    for query, ours in QUERIES.items()
)

SCALE = (
    "intervals, windows and runs divided by 10 (runs of 7 s in a quick run, of 14 s in a full one), "
    "rates that two cores take with room to spare; measured times are multiplied by 10 again "
    "where they follow from the interval"
)
_ALL = tuple(one.name for one in EXPERIMENTS)
_HEADROOM = (
    "the paper loads each query to 80 % of what its machine could take; here there is headroom, so "
    "that small differences drown in a shared machine's noise"
)


def _paper_points(
    table: Mapping[ferdis_paper.PaperRun, Any], fields: Mapping[str, str]
) -> list[Point]:
    ours = {name: protocol for protocol, name in PAPER_NAMES.items()}
    return [
        (name_of(run.query, ours[run.protocol], run.interval_s), kind, float(asdict(values)[field]))
        for run, values in table.items()
        for kind, field in fields.items()
    ]  # fmt: skip


def _against(
    found: Found, quantity: str, at: str, query: str, protocol: str, base: str
) -> float | None:
    """One protocol by another, at 10 s."""
    return ratio(
        found.value(quantity, name_of(query, protocol, 10), at),
        found.value(quantity, name_of(query, base, 10), at),
    )


def _printed(table: Mapping[ferdis_paper.PaperRun, Any], field: str, query: str, protocol: str,
             base: str) -> float | None:  # fmt: skip
    values = [
        table.get(ferdis_paper.PaperRun(query, PAPER_NAMES[one], 10)) for one in (protocol, base)
    ]
    above, below = (None if one is None else float(getattr(one, field)) for one in values)
    return ratio(above, below)


def _latency(query: str, protocol: str, base: str) -> Statement:
    words = {"aligned": "coordinated", "hmnr": "communication-induced"}[protocol]
    return Statement(
        f"{query}: mean latency under {words} checkpoints against uncoordinated ones",
        _printed(ferdis_paper.LATENCY, "mean_ms", query, protocol, base),
        partial(_against, quantity="latency", at="mean", query=query, protocol=protocol, base=base),
        "near", tolerance=0.25, otherwise=_HEADROOM,
    )  # fmt: skip


def _share_forced(found: Found, query: str) -> float | None:
    name = name_of(query, "hmnr", 10)
    forced = found.value("checkpoints", name, "forced")
    regular = found.value("checkpoints", name, "regular")
    return None if forced is None or regular is None else ratio(forced, forced + regular)


def _forced(query: str) -> Statement:
    printed = ferdis_paper.CHECKPOINTS[ferdis_paper.PaperRun(query, "CIC", 10)]
    return Statement(
        f"{query}: share of communication-induced checkpoints that were forced",
        printed.forced / (printed.forced + printed.regular),
        partial(_share_forced, query=query), "at most", tolerance=0.05,
        because="vectors cover only the shards on a cycle, and a shard on none is never forced"
        if query != CYCLIC else "a checkpoint that was forced counts as the local one, too",
        otherwise="shards on the cycle exchange more frames per interval here",
    )  # fmt: skip


def _take(query: str) -> Statement:
    printed = ferdis_paper.CHECKPOINTS[ferdis_paper.PaperRun(query, "UC", 10)]
    return Statement(
        f"{query}: take time of an uncoordinated checkpoint", printed.take_ms,
        lambda found: found.value("checkpoints", name_of(query, "uncoordinated", 10), "take, ms"),
        "at most", unit=" ms",
        because="state is captured in one instant and written in the background",
        otherwise="other programs use the cores, too, while state is captured",
    )  # fmt: skip


def _recovered(query: str, protocol: str) -> Statement:
    printed = ferdis_paper.RECOVERY[ferdis_paper.PaperRun(query, PAPER_NAMES[protocol], 10)]
    return Statement(
        f"{query}: recovery time, {PAPER_NAMES[protocol]} @ 10s", printed.recovery_s,
        lambda found: found.value("recovery", name_of(query, protocol, 10), "s"),
        "at most", unit=" s",
        because="a killed process is noticed and replaced within half a second, and there is "
        "headroom to catch up",
        otherwise="our restart of half a second counts ten times as much at this scale",
    )  # fmt: skip


def _domino(found: Found) -> float | None:
    return ratio(
        found.value("rollback", name_of(CYCLIC, "uncoordinated", 10), "s"),
        found.value("rollback", name_of(CYCLIC, "hmnr", 10), "s"),
    )


_DOMINO = Statement(
    "nhop: rollback of uncoordinated checkpoints against communication-induced ones",
    ferdis_paper.RECOVERY[ferdis_paper.PaperRun(CYCLIC, "UC", 10)].rollback_s
    / ferdis_paper.RECOVERY[ferdis_paper.PaperRun(CYCLIC, "CIC", 10)].rollback_s,
    _domino, "at least", bound=1.0, tolerance=1e9,
    otherwise="how far the domino falls depends on where the timers of the shards stand",
)  # fmt: skip


def _lost(query: str, log: str) -> Statement:
    printed = ferdis_paper.LOSS[ferdis_paper.PaperRun(query, "UC", 10)]
    durable = log == ON_DISK
    return Statement(
        f"{query}: messages lost, UC @ 10s" + (", with durable logs" if durable else log),
        float(printed.lost),
        lambda found: found.value("lost", name_of(query, "uncoordinated", 10, log), "messages"),
        "at most", tolerance=0.5,
        because="logs are files in the store and outlive the process" if durable else
        "intervals and rates are smaller by the scale factor",
        otherwise="rates differ from those of the paper",
    )  # fmt: skip


def _throughput_figure(number: int, query: str, protocols: tuple[str, ...]) -> Exhibit:
    return Exhibit(
        PAPER, f"figure {number}", f"{query} without failures, by protocol", (f"ferdis-{query}",),
        SCALE,
        tuple(_latency(query, one, "uncoordinated") for one in protocols
              if ferdis_paper.PaperRun(query, "UC", 10) in ferdis_paper.LATENCY)
        or (_calm_truth(query),),
        (
            Panel("calm: throughput over time", "lines", "seconds", "records/s"),
            Panel("calm: latency over time", "lines", "seconds", "latency, ms"),
            Panel("latency", "bars", "", "latency, ms"),
        ),
    )  # fmt: skip


def _calm_truth(query: str) -> Statement:
    return Statement(
        f"{query}: rows of output that differ from plain SQL, under any protocol", None,
        lambda found: max((v for c in found.curves("wrong rows") if IN_MEMORY not in c
                           for v in found.values("wrong rows", c)), default=None),
        "at most", 0.0, otherwise="this must not be: please report it",
    )  # fmt: skip


def _recovery_figure(number: int, queries: tuple[str, ...], protocols: tuple[str, ...]) -> Exhibit:
    return Exhibit(
        PAPER, f"figure {number}", f"{' and '.join(queries)}: recovery from one failure, by protocol",
        tuple(f"ferdis-{query}" for query in queries), SCALE,
        tuple(
            _recovered(query, protocol) for query in queries for protocol in protocols
            if ferdis_paper.PaperRun(query, PAPER_NAMES[protocol], 10) in ferdis_paper.RECOVERY
        ),
        (
            Panel("kill: throughput over time", "lines", "seconds from the kill", "records/s"),
            Panel("kill: latency over time", "lines", "seconds from the kill", "latency, ms", log=True),
        ),
    )  # fmt: skip


_THREE = ("uncoordinated", "aligned", "hmnr")
EXHIBITS = (
    Exhibit(
        PAPER, "table 3", "latency without failures", _ALL, SCALE,
        tuple(
            _latency(query, protocol, "uncoordinated")
            for query in ("nexmark-2", "wordcount-small", CYCLIC)
            for protocol in ("aligned", "hmnr") if (query, protocol) != (CYCLIC, "aligned")
        ),
        (Panel("latency", "bars", "", "latency, ms"),),
        {"latency": _paper_points(ferdis_paper.LATENCY, LATENCIES)},
    ),
    Exhibit(
        PAPER, "table 4", "checkpoints without failures", _ALL,
        f"{SCALE}; the number of checkpoints follows from the length of a run and its shards",
        (*(_forced(query) for query in ("nexmark-2", "wordcount-small", CYCLIC)),
         *(_take(query) for query in ("nexmark-2", "wordcount-small", CYCLIC))),
        (),
        {"checkpoints": _paper_points(
            ferdis_paper.CHECKPOINTS,
            {"regular": "regular", "forced": "forced", "take, ms": "take_ms"})},
    ),
    Exhibit(
        PAPER, "table 5", "recovery from one failure", _ALL, SCALE,
        (*(_recovered(query, protocol) for query in ("nexmark-2", "wordcount-small")
           for protocol in _THREE),
         *(_recovered(CYCLIC, protocol) for protocol in ("uncoordinated", "hmnr")), _DOMINO),
        (),
        {"recovery": _paper_points(ferdis_paper.RECOVERY, {"s": "recovery_s"}),
         "rollback": _paper_points(ferdis_paper.RECOVERY, {"s": "rollback_s"})},
        notes=("A rollback here is of the processing of the shard that went back furthest, and "
               "counts from the kill.",),
    ),
    Exhibit(
        PAPER, "table 6", "messages lost in one failure", _ALL,
        f"{SCALE}; memory logs under uncoordinated checkpoints only",
        tuple(_lost(query, log) for query in ("nexmark-2", "wordcount-small")
              for log in (ON_DISK, IN_MEMORY)),
        (), {"lost": _paper_points(ferdis_paper.LOSS, {"messages": "lost"})},
    ),
    _throughput_figure(22, "wordcount-small", ("aligned", "hmnr")),
    _throughput_figure(23, "nexmark-2", ("aligned", "hmnr")),
    _throughput_figure(24, "nexmark-3-large", ("aligned", "hmnr")),
    _throughput_figure(25, "nexmark-5-small", ("aligned", "hmnr")),
    _throughput_figure(26, CYCLIC, ("hmnr",)),
    _recovery_figure(27, ("nexmark-2",), _THREE),
    _recovery_figure(28, ("wordcount-small",), _THREE),
    _recovery_figure(29, ("nexmark-3-small", "nexmark-3-large"), _THREE),
    _recovery_figure(30, (CYCLIC,), ("uncoordinated", "hmnr")),
)  # fmt: skip
