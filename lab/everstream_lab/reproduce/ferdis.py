"""FERDiS: tables 3 to 6 and figures 22 to 30, from runs of the grid of protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from everstream.core.registry import named
from everstream_lab.bench.papers import ferdis_paper
from everstream_lab.bench.protocols.calibration import SHARE, growth_ms_per_s, loaded, most_per_s
from everstream_lab.bench.protocols.grid import FACTOR, PAPER_NAMES, Cell, Setting
from everstream_lab.bench.protocols.measure import measure
from everstream_lab.reproduce.app_runs import joined
from everstream_lab.reproduce.exhibit import (
    Exhibit,
    Found,
    Panel,
    Point,
    Quantities,
    Statement,
    ratio,
    shown,
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
QUICK_QUERIES = ("nexmark-2", "nexmark-3-large", "wordcount-small", "nhop")
QUICK_CALM = ("nexmark-5-small",)
QUICK_KILLED = ("nexmark-3-small",)
"""In a quick run: those with and without a kill, those without only, and those with only."""
CALIBRATED = ("nexmark-2", "wordcount-small", "nexmark-3-large", "nexmark-5-small", CYCLIC)
QUICK_CALIBRATED = ("nexmark-2",)
START_S = 8.0
"""How long a process takes until Spark runs and all is loaded."""
WARMING_S = 2.0
SWEPT = "nexmark-2"
SWEEP_S = (30.0, 15.0, 5.0, 2.0)
"""The intervals of section 9.1, and shorter ones."""
UNSTABLE_S = 20.0
"""Below this interval the paper's system could not keep up with its input."""
KEEPING_UP_MS = 50.0
"""Latency that grows by more in a second means that a twentieth of the input is not processed."""
AT_UC, AT_OWN = "at 80 % of UC's most", "at 80 % of its most"
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
    between = one.input_per_s * cell.interval_s
    measured["between checkpoints"] = [(name, "records", between)]
    if cell.failure:
        measured["lost"] = [
            (name, "messages", one.lost_messages),
            (name, "seconds of output", one.lost_messages / max(one.output_per_s, 1e-9)),
        ]
        for quantity, value in (
            ("restore", one.restore_s), ("checkpoints back", one.checkpoints_back),
            ("replayed", one.replayed),
        ):  # fmt: skip
            if value is not None:
                measured[quantity] = [(name, "all", value)]
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
            (name, "deviation of take, ms", one.take_deviation_ms),
            (name, "durable after, ms", one.durable_ms),
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


def _warm_up(cell: Cell, setting: Setting) -> None:
    measure(cell, replace(setting, run_s=WARMING_S, warm_up_s=0.5), verify=False)


def _runs(
    cells: Sequence[Cell], query: str, setting: Setting, folder: Path, tell: Tell
) -> Quantities:
    """One after the other, on one Spark, after a short run that loads and compiles."""
    _warm_up(replace(cells[0], failure=False), setting)
    measured = []
    for cell in cells:
        tell(f"{query}, {cell.way}")
        measured.append(_run(cell, query, setting, folder, tell))
    return joined(*measured)


def _steps(query: str, effort: Effort) -> Sequence[Step]:
    quick = effort.quick
    setting = Setting(run_s=7.0, kill_s=3.5, warm_up_s=1.5) if quick else Setting()
    intervals_s = (10.0,) if quick else (10.0, 15.0)
    failures: tuple[bool, ...] = (False, True)
    if quick and query not in QUICK_QUERIES:
        failures = (False,) * (query in QUICK_CALM) + (True,) * (query in QUICK_KILLED)
    protocols = _protocols(query)
    cells = [
        Cell(QUERIES[query], protocol, interval_s / setting.factor, failure)
        for interval_s in intervals_s
        for failure in failures
        for protocol in protocols
    ]
    cells += [
        Cell(QUERIES[query], protocol, interval_s / setting.factor, True, log="memory")
        for interval_s in intervals_s
        for protocol in protocols
        if True in failures and query != CYCLIC and named(protocol).logs
    ]
    groups = [
        (interval_s, failure, [
            cell for cell in cells
            if (cell.interval_s, cell.failure) == (interval_s / setting.factor, failure)
        ])
        for interval_s in intervals_s for failure in failures
    ]  # fmt: skip
    return [
        Step(
            f"every-{interval_s:g}s-{'kill' if failure else 'calm'}", number,
            START_S + len(group) * (setting.run_s + 1.0), partial(_runs, group, query, setting),
        )
        for number in range(1 if quick else effort.repeats)
        for interval_s, failure, group in groups
    ]  # fmt: skip


def _protocols(query: str) -> list[str]:
    return [name for name in PAPER_NAMES if name != "aligned" or query != CYCLIC]


def _calibrated(query: str, setting: Setting, folder: Path, tell: Tell) -> Quantities:
    """What each protocol can take, and its latency at 80 % of that and of what UC can take."""
    cells = {
        protocol: Cell(QUERIES[query], protocol, 10.0 / setting.factor, failure=False)
        for protocol in _protocols(query)
    }
    most = {}
    tell(f"{query}: warming up")
    most_per_s(cells["uncoordinated"], setting)  # what comes first compiles and loads
    for protocol, cell in cells.items():
        tell(f"{query}, {PAPER_NAMES[protocol]}: at full speed")
        most[protocol] = most_per_s(cell, setting)
    measured: dict[str, list[Point]] = {
        "most": [(name_of(query, one, 10), "records/s", per_s) for one, per_s in most.items()],
        "calibrated latency": [],
        "calibrated growth": [],
        "calibrated throughput over time": [],
    }
    for protocol, cell in cells.items():
        for load, per_s in ((AT_UC, most["uncoordinated"]), (AT_OWN, most[protocol])):
            if load == AT_OWN and protocol == "uncoordinated":
                continue
            name = f"{name_of(query, protocol, 10)}, {load}"
            tell(name)
            one = measure(cell, loaded(cell, setting, SHARE * per_s), verify=False)
            measured["calibrated latency"] += [
                (name, kind, getattr(one, field)) for kind, field in LATENCIES.items()
            ]
            measured["calibrated growth"].append((name, "ms per second", growth_ms_per_s(one)))
            measured["calibrated throughput over time"] += [
                (name, at_s, value)
                for at_s, value in zip(one.curve["at_s"], one.curve["records_per_s"], strict=True)
                if at_s is not None and value is not None
            ]
    return measured


def _calibrated_steps(effort: Effort) -> Sequence[Step]:
    quick = effort.quick
    setting = Setting(run_s=6.0, warm_up_s=1.5) if quick else Setting()
    return [
        Step(f"calibrated-{query}", number, 60 if quick else 150,
             partial(_calibrated, query, setting))
        for number in range(1 if quick else effort.repeats)
        for query in (QUICK_CALIBRATED if quick else CALIBRATED)
    ]  # fmt: skip


def _swept(intervals_s: Sequence[float], setting: Setting, folder: Path, tell: Tell) -> Quantities:
    """Uncoordinated checkpoints with durable logs so often: how late, and whether it gets later."""
    measured: list[Quantities] = []
    _warm_up(Cell(QUERIES[SWEPT], "uncoordinated", 1.0, failure=False), setting)
    for interval_s in intervals_s:
        tell(f"every {interval_s:g} s")
        cell = Cell(QUERIES[SWEPT], "uncoordinated", interval_s / setting.factor, failure=False)
        one = measure(cell, setting)
        name = name_of(SWEPT, "uncoordinated", interval_s)
        measured.append(
            {
                "latency by interval": [
                    ("mean", interval_s, one.mean_ms),
                    ("99th", interval_s, one.p99_ms),
                ],
                "growth": [("ms per second", interval_s, growth_ms_per_s(one))],
                "log, MB": [(name, "all", one.log_bytes / 1e6)],
                "stood still, ms": [(name, "all", one.take_ms)],
            }
        )
    return joined(*measured)


def _sweep_steps(effort: Effort) -> Sequence[Step]:
    quick = effort.quick
    setting = Setting(run_s=7.0, warm_up_s=1.5) if quick else Setting()
    return [
        Step("sweep", number, START_S + len(SWEEP_S) * (setting.run_s + 1.0),
             partial(_swept, SWEEP_S, setting))
        for number in range(1 if quick else effort.repeats)
    ]  # fmt: skip


EXPERIMENTS = (
    *(
        Experiment(
            f"ferdis-{query}", PAPER, f"everstream bench protocols --query {ours}",
            partial(_steps, query),
        )
        for query, ours in QUERIES.items()
    ),
    Experiment(
        "ferdis-calibrated", PAPER, "everstream reproduce ferdis --only ferdis-calibrated",
        _calibrated_steps,
    ),
    Experiment(
        "ferdis-log-interval", PAPER,
        f"everstream bench protocols --query {QUERIES[SWEPT]} --protocol uncoordinated "
        "--failure none " + " ".join(f"--interval {one / FACTOR:g}s" for one in SWEEP_S),
        _sweep_steps,
    ),
)  # fmt: skip

SCALE = (
    "intervals, windows and runs divided by 10 (runs of 7 s in a quick run, of 14 s in a full one), "
    "rates that two cores take with room to spare; measured times are multiplied by 10 again "
    "where they follow from the interval"
)
_ALL = tuple(f"ferdis-{query}" for query in QUERIES)


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


def _within_spread(found: Found, query: str, protocol: str, base: str) -> str | None:
    """Whether single latencies differ by more than the two means do."""
    names = [name_of(query, one, 10) for one in (protocol, base)]
    means = [found.value("latency", name, "mean") for name in names]
    spreads = [found.value("latency", name, "deviation") for name in names]
    (one, other), known = means, [spread for spread in spreads if spread is not None]
    if one is None or other is None or not known or abs(one - other) > max(known):
        return None
    return (
        f"the means differ by {shown(abs(one - other))} ms only, and single latencies deviate by "
        f"{shown(max(known))} ms"
    )


def _latency(query: str, protocol: str, base: str) -> Statement:
    words = {"aligned": "coordinated", "hmnr": "communication-induced"}[protocol]
    return Statement(
        f"{query}: mean latency under {words} checkpoints against uncoordinated ones",
        _printed(ferdis_paper.LATENCY, "mean_ms", query, protocol, base),
        partial(_against, quantity="latency", at="mean", query=query, protocol=protocol, base=base),
        "near", tolerance=0.25,
        otherwise=partial(_within_spread, query=query, protocol=protocol, base=base),
    )  # fmt: skip


def _at_load(query: str, protocol: str, load: str) -> Statement:
    """The same where queries are loaded as the paper loads them, or as it proposes."""

    def take(found: Found) -> float | None:
        own = f"{name_of(query, protocol, 10)}, {load}"
        base = f"{name_of(query, 'uncoordinated', 10)}, {AT_UC}"
        return ratio(
            found.value("calibrated latency", own, "mean"),
            found.value("calibrated latency", base, "mean"),
        )

    def why(found: Found) -> str | None:
        own = f"{name_of(query, protocol, 10)}, {load}"
        base = f"{name_of(query, 'uncoordinated', 10)}, {AT_UC}"
        for words, name in (("uncoordinated ones", base), ("these", own)):
            growth = found.value("calibrated growth", name, "ms per second")
            if growth is not None and growth > KEEPING_UP_MS:
                return (
                    f"under {words} latency grows by {shown(growth)} ms in a second: the machine "
                    "does not keep up with that load"
                )
        ours, theirs = take(found), printed
        most = [
            found.value("most", name_of(query, one, 10), "records/s")
            for one in (protocol, "uncoordinated")
        ]
        share = ratio(most[1], most[0])
        if load != AT_UC or share is None or ours is None or theirs is None:
            return None
        if (share < 1) is not (ours < theirs):
            return None
        return f"the same load is {shown(100 * SHARE * share)} % of what it can take here"

    printed = _printed(ferdis_paper.LATENCY, "mean_ms", query, protocol, "uncoordinated")
    words = {"aligned": "coordinated", "hmnr": "communication-induced"}[protocol]
    return Statement(
        f"{query}: mean latency under {words} checkpoints {load} against uncoordinated ones {AT_UC}",
        printed, take, "near", tolerance=0.25, otherwise=why,
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
        if query != CYCLIC else "a forced checkpoint puts off the next regular one",
    )  # fmt: skip


def _in_the_background(found: Found, query: str) -> str | None:
    name = name_of(query, "uncoordinated", 10)
    take, durable = (
        found.value("checkpoints", name, one) for one in ("take, ms", "durable after, ms")
    )
    if take is None or durable is None or not durable:
        return None
    return (
        f"state is written by another thread: a checkpoint is durable after {shown(durable)} ms, and "
        f"the shard pauses for {shown(take / durable * 100)} % of that"
    )


def _take(query: str) -> Statement:
    printed = ferdis_paper.CHECKPOINTS[ferdis_paper.PaperRun(query, "UC", 10)]
    return Statement(
        f"{query}: take time of an uncoordinated checkpoint", printed.take_ms,
        lambda found: found.value("checkpoints", name_of(query, "uncoordinated", 10), "take, ms"),
        "at most", unit=" ms", because=partial(_in_the_background, query=query),
    )  # fmt: skip


def _came_back(found: Found, query: str, protocol: str) -> str | None:
    """The parts of a recovery: until all shards were restored, and until latency was as before."""
    name = name_of(query, protocol, 10)
    restore = found.value("restore", name, "all")
    recovery = found.value("recovery", name, "s")
    if restore is None or recovery is None:
        return None
    restored = restore * FACTOR
    return (
        f"all shards were restored {shown(restore)} s after the kill, which is {shown(restored)} s "
        f"at this scale, and latency was as before {shown(max(0.0, recovery - restored))} s later"
    )


def _recovered(query: str, protocol: str) -> Statement:
    printed = ferdis_paper.RECOVERY[ferdis_paper.PaperRun(query, PAPER_NAMES[protocol], 10)]
    return Statement(
        f"{query}: recovery time, {PAPER_NAMES[protocol]} @ 10s", printed.recovery_s,
        lambda found: found.value("recovery", name_of(query, protocol, 10), "s"),
        "at most", unit=" s", because=partial(_came_back, query=query, protocol=protocol),
        otherwise=partial(_came_back, query=query, protocol=protocol),
    )  # fmt: skip


def _domino(found: Found) -> float | None:
    return ratio(
        found.value("rollback", name_of(CYCLIC, "uncoordinated", 10), "s"),
        found.value("rollback", name_of(CYCLIC, "hmnr", 10), "s"),
    )


def _fell_back(found: Found) -> str | None:
    """How many checkpoints were given up: a domino effect gives up more than one."""
    counts = {
        one: found.value("checkpoints back", name_of(CYCLIC, one, 10), "all")
        for one in ("uncoordinated", "hmnr")
    }
    if None in counts.values():
        return None
    return (
        f"uncoordinated shards gave up {shown(counts['uncoordinated'] or 0)} checkpoints at most, and "
        f"communication-induced ones {shown(counts['hmnr'] or 0)}"
    )


_DOMINO = Statement(
    "nhop: rollback of uncoordinated checkpoints against communication-induced ones",
    ferdis_paper.RECOVERY[ferdis_paper.PaperRun(CYCLIC, "UC", 10)].rollback_s
    / ferdis_paper.RECOVERY[ferdis_paper.PaperRun(CYCLIC, "CIC", 10)].rollback_s,
    _domino, "at least", bound=1.0, tolerance=1e9,
    otherwise=_fell_back,
)  # fmt: skip


def _between(found: Found, query: str, protocol: str, log: str, *, fewer: bool) -> str | None:
    """What comes between two checkpoints, if that is a reason to lose fewer messages, or more."""
    here = found.value("between checkpoints", name_of(query, protocol, 10, log), "records")
    row = ferdis_paper.LOSS[ferdis_paper.PaperRun(query, PAPER_NAMES[protocol], 10)]
    theirs = row.input_per_s * 10
    if here is None or (here < theirs) is not fewer:
        return None
    return (
        f"{shown(here)} records come between two checkpoints here, and {shown(theirs)} in the paper"
    )


def _lost(query: str, protocol: str, log: str) -> Statement:
    paper = PAPER_NAMES[protocol]
    printed = ferdis_paper.LOSS.get(ferdis_paper.PaperRun(query, paper, 10))
    take = partial(
        Found.value, quantity="lost", curve=name_of(query, protocol, 10, log), at="messages"
    )
    if printed is None:  # coordinated checkpoints
        return Statement(
            f"{query}: messages lost, {paper} @ 10s",
            0.0,
            take,
            "at most",
            0.0,
            otherwise="this must not be: please report it",
        )
    durable = log == ON_DISK
    fewer, more = (
        partial(_between, query=query, protocol=protocol, log=log, fewer=one)
        for one in (True, False)
    )
    return Statement(
        f"{query}: messages lost, {paper} @ 10s" + (", with durable logs" if durable else log),
        float(printed.lost), take, "at most", tolerance=0.5,
        because="logs are files in the store and outlive the process" if durable else fewer,
        otherwise="this must not be: please report it" if durable else more,
    )  # fmt: skip


def _lost_output(query: str, protocol: str) -> Statement:
    """The paper's column "lost throughput": the messages as seconds of output."""
    printed = ferdis_paper.LOSS[ferdis_paper.PaperRun(query, PAPER_NAMES[protocol], 10)]

    def take(found: Found) -> float | None:
        name = name_of(query, protocol, 10, IN_MEMORY)
        seconds = found.value("lost", name, "seconds of output")
        return None if seconds is None else seconds * FACTOR

    return Statement(
        f"{query}: seconds of output lost, {PAPER_NAMES[protocol]} @ 10s{IN_MEMORY}, times {FACTOR:g}",
        printed.lost_s, take, "at most", tolerance=0.5, unit=" s",
        because=partial(_between, query=query, protocol=protocol, log=IN_MEMORY, fewer=True),
        otherwise=partial(_between, query=query, protocol=protocol, log=IN_MEMORY, fewer=False),
    )  # fmt: skip


def _stays(found: Found) -> str | None:
    """What happens to a log here."""
    name = name_of(SWEPT, "uncoordinated", SWEEP_S[-1])
    logged, stood = (found.value(one, name, "all") for one in ("log, MB", "stood still, ms"))
    if logged is None or stood is None:
        return None
    return (
        f"a log is a file that is appended to all the time, and no part of a checkpoint: at the "
        f"shortest interval {shown(logged)} MB were logged, and shards stood still for "
        f"{shown(stood)} ms per checkpoint"
    )


def _growth(interval_s: float) -> Statement:
    return Statement(
        f"{SWEPT}: what latency grows by in a second, durable logs, UC @ {interval_s:g}s", None,
        partial(Found.value, quantity="growth", curve="ms per second", at=interval_s),
        "at most", KEEPING_UP_MS, unit=" ms", because=_stays,
        in_words=f"growth without end under {UNSTABLE_S:g} s",
    )  # fmt: skip


def _throughput_figure(number: int, query: str, protocols: tuple[str, ...]) -> Exhibit:
    return Exhibit(
        PAPER, f"figure {number}", f"{query} without failures, by protocol",
        (f"ferdis-{query}",), SCALE,
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


LOSING = ("nexmark-2", "nexmark-3-small", "nexmark-3-large", "wordcount-small")
_OURS = {name: protocol for protocol, name in PAPER_NAMES.items()}


def _in_memory(points: Sequence[Point]) -> list[Point]:
    return [(f"{name}{IN_MEMORY}", at, value) for name, at, value in points]


_THREE = ("uncoordinated", "aligned", "hmnr")
EXHIBITS = (
    Exhibit(
        PAPER, "table 3", "latency without failures", (*_ALL, "ferdis-calibrated"), SCALE,
        (
            *(
                _latency(query, protocol, "uncoordinated")
                for query in ("nexmark-2", "wordcount-small", CYCLIC)
                for protocol in ("aligned", "hmnr") if (query, protocol) != (CYCLIC, "aligned")
            ),
            *(
                _at_load("nexmark-2", protocol, load)
                for load in (AT_UC, AT_OWN) for protocol in ("aligned", "hmnr")
            ),
        ),
        (
            Panel("latency", "bars", "", "latency, ms"),
            Panel("calibrated latency", "bars", "", "latency, ms", log=True),
            Panel("most", "bars", "", "records/s"),
            Panel("calibrated throughput over time", "lines", "seconds", "records/s"),
        ),
        {"latency": _paper_points(ferdis_paper.LATENCY, LATENCIES)},
        notes=("The paper loads each query to 80 % of what it takes under UC @ 10s. The rows with a "
               "load in their name do, too; all others have a fixed rate with headroom, so that a "
               "run catches up after a kill.",),
    ),
    Exhibit(
        PAPER, "table 4", "checkpoints without failures", _ALL,
        f"{SCALE}; the number of checkpoints follows from the length of a run and its shards",
        (*(_forced(query) for query in ("nexmark-2", "wordcount-small", CYCLIC)),
         *(_take(query) for query in ("nexmark-2", "wordcount-small", CYCLIC))),
        (Panel("checkpoints", "bars", "", "checkpoints, or ms"),),
        {"checkpoints": _paper_points(
            ferdis_paper.CHECKPOINTS,
            {"regular": "regular", "forced": "forced", "take, ms": "take_ms",
             "deviation of take, ms": "deviation_ms"})},
        notes=("The take time is how long processing stood still. A checkpoint is durable later: "
               "the table has both.",),
    ),
    Exhibit(
        PAPER, "table 5", "recovery from one failure", _ALL, SCALE,
        (*(_recovered(query, protocol)
           for query in ("nexmark-2", "nexmark-3-large", "wordcount-small") for protocol in _THREE),
         *(_recovered(CYCLIC, protocol) for protocol in ("uncoordinated", "hmnr")), _DOMINO),
        (),
        {"recovery": _paper_points(ferdis_paper.RECOVERY, {"s": "recovery_s"}),
         "rollback": _paper_points(ferdis_paper.RECOVERY, {"s": "rollback_s"})},
        {"recovery": _paper_points(ferdis_paper.RECOVERY, {"s": "recovery_deviation_s"}),
         "rollback": _paper_points(ferdis_paper.RECOVERY, {"s": "rollback_deviation_s"})},
        notes=("A rollback here is of the processing of the shard that went back furthest, and "
               "counts from the kill.",),
    ),
    Exhibit(
        PAPER, "table 6", "messages lost in one failure", _ALL, SCALE,
        (
            *(_lost(query, protocol, log) for query in LOSING
              for protocol in ("uncoordinated", "hmnr") for log in (ON_DISK, IN_MEMORY)),
            *(_lost(query, "aligned", ON_DISK) for query in LOSING),
            *(_lost_output(query, protocol) for query in LOSING
              for protocol in ("uncoordinated", "hmnr")),
        ),
        (),
        {"lost": [
            *_in_memory(_paper_points(ferdis_paper.LOSS, {"messages": "lost"})),
            *_in_memory([(name_of(run.query, _OURS[run.protocol], run.interval_s),
                          "seconds of output", row.lost_s)
                         for run, row in ferdis_paper.LOSS.items()]),
        ]},
        {"lost": _in_memory(_paper_points(ferdis_paper.LOSS, {"messages": "lost_deviation"}))},
        notes=("The paper's logs are in memory. Ours are files, except in rows that name memory. The text gives "
               "0.2 to 5.5 s of lost output, and so does its table.",
               "Coordinated checkpoints need no logs and lose nothing, here as in the paper."),
    ),
    Exhibit(
        PAPER, "section 9.1", "logs in checkpoints: latency by interval", ("ferdis-log-interval",),
        f"{SCALE}. The paper put logs into checkpoints; here they are files of their own, just as "
        "durable",
        (
            Statement(
                f"{SWEPT}: mean latency, durable logs, UC @ {SWEEP_S[0]:g}s", 2000.0,
                partial(Found.value, quantity="latency by interval", curve="mean", at=SWEEP_S[0]),
                "at most", unit=" ms", because=_stays,
            ),
            *(_growth(interval_s) for interval_s in SWEEP_S[1:]),
        ),
        (
            Panel("latency by interval", "lines", "interval, s", "latency, ms", log=True),
            Panel("growth", "lines", "interval, s", "growth of latency, ms/s"),
        ),
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
