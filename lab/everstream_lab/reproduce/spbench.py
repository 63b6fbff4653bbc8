"""SPBench: figures 6 to 16. The paper prints few numbers: its figures are shapes, its claims sentences."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

from everstream.connectors.generate.load import Pattern
from everstream_lab.apps.figures.spbench import BOTH, FARMS, under
from everstream_lab.reproduce.app_runs import by_setting, joined, over_time, runs_in
from everstream_lab.reproduce.exhibit import (
    Exhibit,
    Found,
    Panel,
    Quantities,
    Statement,
    ratio,
    shown,
)
from everstream_lab.reproduce.experiments import Effort, Experiment, Step, Tell

PAPER = "spbench"
BATCHES = (1, 2, 4, 8, 16)
PATTERNS: dict[Pattern, tuple[int, tuple[str, str, str]]] = {
    "wave": (12, ("compress", "lane", "ferret")),
    "binary": (13, ("compress", "lane", "ferret")),
    "increasing": (14, ("compress", "face", "ferret")),
    "decreasing": (15, ("face", "lane", "ferret")),
    "spike": (16, ("compress", "face", "ferret")),
}
"""Pattern -> the number of its figure, and the applications in it."""
SCALE = (
    "input class {size} instead of huge, at most {workers} workers instead of 40, plain processes "
    "and Everstream's operators instead of TBB and FastFlow"
)


def _interfaces(effort: Effort) -> Sequence[str]:
    return ("everstream",) if effort.quick else BOTH


def _workers(effort: Effort) -> str:
    return "1:2" if effort.quick else "1:4"


def _size(effort: Effort) -> str:
    return "small" if effort.quick else "medium"


def _characterise(size: str, application: str, folder: Path, tell: Tell) -> Quantities:
    runs = runs_in(folder, tell, size, "1")
    seen = over_time(runs.of(application, ["sequential"]))
    return {name: [(application, at, value) for _, at, value in seen[name]] for name in seen}


def _parallelism(size: str, workers: str, application: str, folder: Path, tell: Tell) -> Quantities:
    ran = runs_in(folder, tell, size, workers).of(application, BOTH)
    return by_setting(ran, "workers", ("application", "interface"))


def _live_batch(
    size: str, workers: str, interfaces: Sequence[str], application: str, folder: Path, tell: Tell
) -> Quantities:
    runs = runs_in(folder, tell, size, workers)
    return over_time(runs.of(application, interfaces, batch="1..10", workers=runs.most))


def _static_batch(size: str, workers: str, interface: str, folder: Path, tell: Tell) -> Quantities:
    ran = runs_in(folder, tell, size, workers).of(
        "lane", [interface], batch=",".join(map(str, BATCHES))
    )
    return by_setting(ran, "batch", ("interface", "workers"))


def _patterns(
    size: str, workers: str, interfaces: Sequence[str], application: str, folder: Path, tell: Tell
) -> Quantities:
    """All patterns that the paper shows of this application; one sample calibrates them."""
    runs = runs_in(folder, tell, size, workers)
    measured = []
    for pattern, (_, applications) in PATTERNS.items():
        if application in applications:
            _, ran = under(runs, application, pattern, interfaces)
            measured.append(over_time(ran, f"{pattern}, {application}, "))
    return joined(*measured)


def _each(
    name: str,
    about_s: float,
    choices: Sequence[str],
    perform: Callable[[Effort], Callable[..., Quantities]],
) -> Callable[[Effort], Sequence[Step]]:
    """A step per choice and repetition, in turn."""

    def steps(effort: Effort) -> Sequence[Step]:
        factor = 1 if effort.quick else 10
        return [
            Step(f"{name}-{choice}", number, factor * about_s, partial(perform(effort), choice))
            for number in range(1 if effort.quick else effort.repeats)
            for choice in choices
        ]

    return steps


EXPERIMENTS = (
    Experiment(
        "spbench-characterisation", PAPER, "everstream apps figures spbench-6",
        _each("sequential", 8, FARMS, lambda effort: partial(_characterise, _size(effort))),
    ),
    Experiment(
        "spbench-parallelism", PAPER, "everstream apps figures spbench-7",
        _each("workers", 20, FARMS,
              lambda effort: partial(_parallelism, _size(effort), _workers(effort))),
    ),
    *(
        Experiment(
            f"spbench-batch-{application}", PAPER, f"everstream apps figures spbench-{number}",
            _each("rising", 12, (application,), lambda effort: partial(
                _live_batch, _size(effort), _workers(effort), _interfaces(effort))),
        )
        for number, application in ((8, "compress"), (9, "ferret"))
    ),
    Experiment(
        "spbench-batches", PAPER, "everstream apps figures spbench-10",
        _each("lane", 35, ("everstream",),
              lambda effort: partial(_static_batch, _size(effort), _workers(effort))),
    ),
    Experiment(
        "spbench-patterns", PAPER, "everstream apps figures " + " ".join(
            f"spbench-{number}" for number, _ in PATTERNS.values()),
        _each("load", 38, FARMS, lambda effort: partial(
            _patterns, _size(effort), _workers(effort), _interfaces(effort))),
    ),
)  # fmt: skip


def _mean(found: Found, quantity: str, curve: str) -> float | None:
    values = found.values(quantity, curve)
    return fmean(values) if values else None


def _spread(found: Found, curve: str) -> float | None:
    """How much the throughput of an application varies, as a share of its mean."""
    values = found.values("throughput over time", curve)
    return pstdev(values) / fmean(values) if len(values) > 1 and fmean(values) else None


def _late_by_early(found: Found, quantity: str, curve: str) -> float | None:
    """The mean of its last third as a multiple of its first."""
    values = found.values(quantity, curve)
    third = len(values) // 3
    return ratio(fmean(values[-third:]), fmean(values[:third])) if third else None


def _between_batches(found: Found, quantity: str) -> float | None:
    """The largest batch against no batch, with the most workers."""
    curves = [one for one in found.curves(quantity) if one.startswith("everstream")]
    return found.gain(quantity, curves[-1]) if curves else None


def _load_and_response(found: Found, pattern: str, application: str) -> list[tuple[float, float]]:
    """Moment by moment: the frequency that the source made available, and the latency then."""
    curve = f"{pattern}, {application}, everstream"
    targets = dict(found.curve("target over time", curve))
    waits = dict(found.curve("latency over time", curve))
    return [(targets[at].mean, wait.mean) for at, wait in waits.items() if at in targets]


def _high_by_low(found: Found, pattern: str, application: str) -> float | None:
    """Latency while the frequency is in its upper half against that in its lower half."""
    moments = _load_and_response(found, pattern, application)
    if not moments:
        return None
    middle = (min(f for f, _ in moments) + max(f for f, _ in moments)) / 2
    high = [wait for frequency, wait in moments if frequency > middle]
    low = [wait for frequency, wait in moments if frequency <= middle]
    return ratio(fmean(high), fmean(low)) if high and low else None


def _follows(found: Found, pattern: str, application: str) -> float | None:
    """Items that came by the end, per item that the source made available."""
    curve = f"{pattern}, {application}, everstream"
    given = _mean(found, "target over time", curve)
    return ratio(_mean(found, "throughput over time", curve), given)


_TIMES = (
    Panel("throughput over time", "lines", "seconds", "items/s"),
    Panel("latency over time", "lines", "seconds", "latency, ms"),
)
_QUIET = SCALE.format(size="small (quick) or medium", workers="2 (quick) or 4")


def _in_the_middle(application: str) -> Callable[[Found], str | None]:
    """Whether only the ends of a run are idle."""

    def why(found: Found) -> str | None:
        values = found.values("CPU over time", application)
        if len(values) < 8:
            return None
        middle = fmean(values[len(values) // 4 : -(len(values) // 4)])
        if abs(middle - 100) > 25:
            return None
        return f"a run begins and ends idle: in its middle half it is {shown(middle)} %"

    return why


def _cores_in_use(curve: str) -> Callable[[Found], str | None]:
    """Whether the program had all cores already: then the batch is not what limits it."""

    def why(found: Found) -> str | None:
        used = _mean(found, "CPU over time", curve)
        cores = os.cpu_count() or 1
        if used is None or used < 85 * cores:
            return None
        return f"its processes use {shown(used)} % of a core, of {cores * 100} %, all the time"

    return why


def _items_differ(pattern: str, application: str) -> Callable[[Found], str | None]:
    """How much latency varies while the load hardly does."""

    def why(found: Found) -> str | None:
        moments = _load_and_response(found, pattern, application)
        if not moments:
            return None
        middle = (min(f for f, _ in moments) + max(f for f, _ in moments)) / 2
        low = [wait for frequency, wait in moments if frequency <= middle]
        high_by_low = _high_by_low(found, pattern, application)
        if len(low) < 3 or high_by_low is None or not fmean(low):
            return None
        varies = pstdev(low) / fmean(low)
        if varies < abs(1 - high_by_low):
            return None
        return (
            f"latency varies by {shown(varies * 100)} % in the lower half of the frequencies alone"
        )

    return why


def _least_by_most(pattern: str, application: str) -> Callable[[Found], str | None]:
    """What was asked for in the busiest moment against the most that ever came."""

    def why(found: Found) -> str | None:
        curve = f"{pattern}, {application}, everstream"
        asked = found.best("target over time", curve)
        came = found.best("throughput over time", curve)
        if asked is None or came is None or came >= asked:
            return None
        return (
            f"up to {shown(asked)} items/s are made available and at most {shown(came)} come, and "
            "nothing is caught up with"
        )

    return why


def _processes_gain(application: str) -> Callable[[Found], str | None]:
    """Whether plain processes gain more on the same cores."""

    def why(found: Found) -> str | None:
        gain = found.gain("throughput", f"{application}, processes")
        if gain is None or gain >= 1.0:
            return None
        return f"plain processes come to {shown(gain)} on these cores"

    return why


def _rising(application: str, number: int) -> Exhibit:
    return Exhibit(
        PAPER, f"figure {number}", f"{application}: a batch that grows from 1 to 10 during the run",
        (f"spbench-batch-{application}",), _QUIET,
        (
            Statement("latency of the last third of the run against the first", None,
                      partial(_late_by_early, quantity="latency over time", curve="everstream"),
                      "at least", 1.0),
            Statement("throughput of the last third of the run against the first", None,
                      partial(_late_by_early, quantity="throughput over time", curve="everstream"),
                      "near", 1.0, tolerance=0.3, otherwise=_cores_in_use("everstream")),
        ),
        (*_TIMES, Panel("batch over time", "lines", "seconds", "items in a batch")),
    )  # fmt: skip


def _batches(number: int, machine: str, workers: str) -> Exhibit:
    return Exhibit(
        PAPER, f"figure {number}", f"lane detection: batches of 1 to 16 by workers ({machine})",
        ("spbench-batches",), f"{_QUIET}; the paper's machine had {workers} workers",
        (
            Statement("latency with batches of 16 against single items", None,
                      partial(_between_batches, quantity="latency"), "at least", 1.0),
            Statement("throughput with batches of 16 against single items", None,
                      partial(_between_batches, quantity="throughput"), "near", 1.0, tolerance=0.25),
        ),
        (
            Panel("latency", "lines", "batch", "latency, ms"),
            Panel("throughput", "lines", "batch", "items/s"),
        ),
    )  # fmt: skip


def _under_load(pattern: Pattern) -> Exhibit:
    number, applications = PATTERNS[pattern]
    return Exhibit(
        PAPER, f"figure {number}", f"the load pattern {pattern}: {', '.join(applications)}",
        ("spbench-patterns",), _QUIET,
        tuple(
            one
            for application in applications
            for one in (
                Statement(f"{application}: items delivered per item made available", None,
                          partial(_follows, pattern=pattern, application=application),
                          "near", 1.0, tolerance=0.25,
                          otherwise=_least_by_most(pattern, application)),
                Statement(f"{application}: latency at a high frequency against a low one", None,
                          partial(_high_by_low, pattern=pattern, application=application),
                          "at least", 1.0,
                          otherwise=_items_differ(pattern, application)),
            )
        ),
        _TIMES,
        curves=f"{pattern}, ",
    )  # fmt: skip


EXHIBITS = (
    Exhibit(
        PAPER, "figure 6", "characterisation of the applications over time",
        ("spbench-characterisation",), _QUIET,
        (
            *(
                Statement(f"{application}: CPU of the sequential program", 100.0,
                          partial(_mean, quantity="CPU over time", curve=application),
                          tolerance=0.25, unit=" %",
                          otherwise=_in_the_middle(application))
                for application in FARMS
            ),
            Statement("bzip2's variation of throughput against ferret's", None,
                      lambda found: ratio(_spread(found, "compress"), _spread(found, "ferret")),
                      "at most", 1.0),
        ),
        (
            Panel("CPU over time", "lines", "seconds", "CPU, % of a core"),
            Panel("memory over time", "lines", "seconds", "memory, MB"),
            *_TIMES,
        ),
    ),
    Exhibit(
        PAPER, "figure 7", "latency and throughput by parallelism", ("spbench-parallelism",), _QUIET,
        tuple(
            Statement(f"{application}: throughput with the most workers against one", None,
                      partial(Found.gain, quantity="throughput",
                              curve=f"{application}, everstream"),
                      "at least", 1.0, otherwise=_processes_gain(application))
            for application in FARMS
        ),
        (
            Panel("latency", "lines", "workers", "latency, ms", log=True),
            Panel("throughput", "lines", "workers", "items/s", log=True),
        ),
    ),
    _rising("compress", 8),
    _rising("ferret", 9),
    _batches(10, "AMD Ryzen 5 5600X", "12"),
    _batches(11, "Intel Xeon Silver 4210", "40"),
    *(_under_load(pattern) for pattern in PATTERNS),
)  # fmt: skip
