"""The CCRR study: figures 6 to 9 and tables 2 to 5, from the compiled queueing model."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from everstream_lab.queueing import grid, paper
from everstream_lab.queueing.report import window_formula
from everstream_lab.reproduce.exhibit import (
    Exhibit,
    Found,
    Panel,
    Point,
    Quantities,
    Statement,
    shown,
    unexplained,
)
from everstream_lab.reproduce.experiments import Effort, Experiment, Step, Tell

PAPER = "queueing"
WINDOWS = (1_000_000, 2_000_000, 4_000_000, 6_000_000, 8_000_000, paper.WINDOW_TUPLES)
RATE = 5000
"""Of figures 6 and 7."""


def _curve(case: int) -> str:
    return f"case {case}"


def _operator_curve(case: int, operator: int) -> str:
    return f"case {case}, {paper.OPERATORS[operator]}"


def _cases(repetition: int, coarse: int, batch: int, folder: Path, tell: Tell) -> Quantities:
    """All cases at all rates: what the window took, what was lost, and how long tuples waited."""
    measured: dict[str, list[Point]] = {
        name: [] for name in ("latency", "throughput", "lost", "unprocessed", "wait")
    }
    for case in paper.CASES:
        for rate in paper.RATES_PER_S:
            tell(f"case {case.number}, {rate} tuples/s")
            task = grid.Task(
                "paper", case.number, rate, repetition * batch, coarse=coarse, batch=batch
            )
            row = grid.run_task(task)
            curve = _curve(case.number)
            measured["latency"].append((curve, rate, row.window_s))
            measured["throughput"].append((curve, rate, task.tuples / row.window_s))
            measured["lost"].append((curve, rate, row.lost))
            measured["unprocessed"].append((curve, rate, row.unprocessed))
            if coarse == 1:
                measured["wait"] += [
                    (_operator_curve(case.number, operator), rate, wait_s * 1e6)
                    for operator, wait_s in enumerate(row.mean_wait_s)
                ]
    return {name: points for name, points in measured.items() if points}


def _windows(repetition: int, coarse: int, batch: int, folder: Path, tell: Tell) -> Quantities:
    """Cases 2 and 3 over the size of the window, with what the equations give."""
    latency: list[Point] = []
    lost: list[Point] = []
    for number, name in ((2, "no failures"), (3, "one node fails")):
        case = paper.CASES[number - 1]
        for size in WINDOWS:
            tell(f"case {number}, {size} tuples")
            task = grid.Task("paper", number, RATE, repetition * batch, size, coarse, batch)
            row = grid.run_task(task)
            at = size / 1e6
            latency.append((f"simulated, {name}", at, row.window_s))
            latency.append((f"equation, {name}", at, window_formula(case, size, RATE, "window_s")))
            lost.append((f"simulated, {name}", at, row.lost))
            lost.append((f"equation, {name}", at, window_formula(case, size, RATE, "lost")))
    return {"latency": latency, "lost": lost}


def _case_steps(effort: Effort) -> Sequence[Step]:
    """Coarse ones for what times and losses are; fine ones for waiting times, which only they have."""
    repeats, batch = (3, 10) if effort.quick else (10, 40)
    coarse = [
        Step("times-and-losses", number, 10 if effort.quick else 40, partial(_cases, number, 100, batch))
        for number in range(repeats)
    ]  # fmt: skip
    fine = [
        Step("waits", 1000 + number, 60, partial(_cases, 1000 + number, 1, 1))
        for number in range(1 if effort.quick else 10)
    ]
    return [*coarse, *fine]


def _window_steps(effort: Effort) -> Sequence[Step]:
    repeats, batch = (3, 10) if effort.quick else (10, 40)
    return [
        Step("windows", number, 5 if effort.quick else 10, partial(_windows, number, 100, batch))
        for number in range(repeats)
    ]


EXPERIMENTS = (
    Experiment("queueing-cases", PAPER, "everstream model paper", _case_steps),
    Experiment("queueing-windows", PAPER, "everstream model paper", _window_steps),
)


def _grid(found: Found) -> dict[tuple[int, int], paper.Point]:
    """In the form that the study's claims are taken from."""
    points = {}
    for case in paper.CASES:
        for rate in paper.RATES_PER_S:
            curve = _curve(case.number)
            window_s = found.value("latency", curve, rate)
            if window_s is None:
                return {}
            waits = [
                found.value("wait", _operator_curve(case.number, operator), rate)
                for operator in range(len(paper.OPERATORS))
            ]
            points[case.number, rate] = paper.Point(
                window_s,
                found.value("lost", curve, rate) or 0.0,
                found.value("unprocessed", curve, rate) or 0.0,
                tuple(wait * 1e-6 for wait in waits if wait is not None),
            )
    return points


def _claimed(found: Found, claim: paper.Claim) -> float | None:
    points = _grid(found)
    if not points or (claim.waits and not all(point.mean_wait_s for point in points.values())):
        return None
    return claim.measure(points)


def _contradiction(claim: paper.Claim) -> str:
    """What the study itself says otherwise; empty if nothing."""
    printed = {
        one.paper for one in paper.claims() if (one.case, one.what) == (claim.case, claim.what)
    }
    if len(printed) > 1:
        return "the study prints " + " and ".join(shown(one) for one in sorted(printed)) + " for it"
    return claim.note if claim.waits or claim.tolerance is None else ""


def _statements(*words: str) -> tuple[Statement, ...]:
    """Those claims of the study whose quantity has one of these words."""
    return tuple(
        Statement(
            f"case {claim.case}: {claim.what}",
            claim.paper,
            partial(_claimed, claim=claim),
            tolerance=claim.tolerance or 0.02,
            otherwise=_contradiction(claim) or unexplained,
        )
        for claim in paper.claims()
        if any(word in claim.what for word in words)
    )


def _error(found: Found, quantity: str, name: str) -> float | None:
    """The largest difference between equation and simulation, in per cent.

    Windows that are over before the first failure is due are left out: the equation has one there.
    """
    errors = [
        abs(equation / simulated.mean - 1) * 100
        for at, simulated in found.curve(quantity, f"simulated, {name}")
        if (equation := found.value(quantity, f"equation, {name}", at)) is not None
        if not isinstance(at, str) and at * 1e6 / RATE > paper.CASES[2].mtbf_s
    ]
    return max(errors, default=None)


def _equation_statements(quantity: str, calm: float, failing: float) -> tuple[Statement, ...]:
    why = (
        "the study does not name its windows, and its equation 6 counts one failure more than "
        "strikes, which weighs most in a short window"
    )
    return tuple(
        Statement(
            f"the largest error of the equation for windows longer than M, {name},",
            printed,
            partial(_error, quantity=quantity, name=name),
            goal="at most",
            tolerance=0.0,
            otherwise=why,
            unit=" %",
        )
        for name, printed in (("no failures", calm), ("one node fails", failing))
    )


def _wait_table(case: int) -> Exhibit:
    printed = [
        (_operator_curve(case, operator), rate, value * 1e6)
        for rate in paper.RATES_PER_S
        for operator in range(len(paper.OPERATORS))
        if (value := paper.paper_wait_s(case, rate, operator)) is not None
    ]
    why = (
        "three CPUs at most 27 % loaded leave hardly a queue; the study's waits are longer than "
        "even a single CPU with all arrivals in step gives, and are multiples of the last digit "
        "that its program prints"
    )
    longest = Statement(
        "the mean wait before operator 1 at 10,000 tuples/s",
        (paper.paper_wait_s(case, 10_000, 0) or 0.0) * 1e6,
        lambda found: found.value("wait", _operator_curve(case, 0), 10_000),
        otherwise=why,
        unit=" µs",
    )
    growth = _statements("wait of operator") if case > 2 else ()
    return Exhibit(
        PAPER,
        f"table {case + 1}",
        f"mean waiting time in case {case}, µs",
        ("queueing-cases",),
        SCALE,
        (longest, *(one for one in growth if one.says.startswith(f"case {case}:"))),
        panels=(Panel("wait", "lines", "tuples/s", "mean wait, µs"),),
        printed={"wait": printed},
        curves=f"{_curve(case)}, ",
        notes=tuple(paper.CONTRADICTIONS[6:]),
    )


SCALE = (
    "full size: windows of 10 million tuples. Waits come from tuples one by one, times and losses "
    "from windows in which one tuple represents a hundred."
)

EXHIBITS = (
    Exhibit(
        PAPER, "figure 6", "information lost by the size of the window", ("queueing-windows",), SCALE,
        _equation_statements("lost", 1.0, 11.6),
        (Panel("lost", "lines", "window, million tuples", "tuples lost"),),
    ),
    Exhibit(
        PAPER, "figure 7", "latency by the size of the window", ("queueing-windows",), SCALE,
        _equation_statements("latency", 1.5, 10.5),
        (Panel("latency", "lines", "window, million tuples", "latency of the window, s"),),
    ),
    Exhibit(
        PAPER, "figure 8", "latency and throughput by arrival rate", ("queueing-cases",), SCALE,
        _statements("latency"),
        (
            Panel("latency", "lines", "tuples/s", "latency of the window, s"),
            Panel("throughput", "lines", "tuples/s", "tuples/s"),
        ),
        notes=(paper.CONTRADICTIONS[5],),
    ),
    Exhibit(
        PAPER, "figure 9", "tuples unprocessed and lost by arrival rate", ("queueing-cases",), SCALE,
        _statements("tuples"),
        (
            Panel("unprocessed", "lines", "tuples/s", "tuples unprocessed"),
            Panel("lost", "lines", "tuples/s", "tuples lost"),
        ),
        notes=(paper.CONTRADICTIONS[3], paper.CONTRADICTIONS[4]),
    ),
    *(_wait_table(case.number) for case in paper.CASES),
)  # fmt: skip
