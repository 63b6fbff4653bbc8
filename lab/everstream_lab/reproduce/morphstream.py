"""MorphStreamR: recovery schemes for transactions, figures 2, 9 and 11 to 14."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from everstream_lab.bench.transactions import studies
from everstream_lab.bench.transactions.figures import PAPER_GAIN, PAPER_WORKERS
from everstream_lab.bench.transactions.measure import Facts
from everstream_lab.bench.transactions.report import PARTS
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
from everstream_lab.workloads.transactions import WORKLOADS

PAPER = "morphstream"
SCHEMES = ("none", "checkpoint", "wal", "dependency", "lsn-vector", "fast")
RECOVERING = SCHEMES[1:]
NAMES = {"none": "NAT", "checkpoint": "CKPT", "wal": "WAL", "dependency": "DL",
         "lsn-vector": "LV", "fast": "MSR"}  # fmt: skip
"""Ours -> the paper's."""
LOGS = ("wal", "dependency", "lsn-vector")
OTHERS = RECOVERING[:-1]


def _plan(
    folder: Path, workloads: Sequence[str], schemes: Sequence[str], events: int
) -> studies.Plan:
    return studies.Plan(
        folder=folder, workloads=workloads, schemes=schemes, events=events, threads=2,
        epoch_events=4096, operation_cost_s=8e-6, recoveries=1, runs=1, verify=True, spare=False,
        patience=1, seed=7, knobs={},
    )  # fmt: skip


def _recovered_per_s(row: Facts) -> float:
    return float(row["run"]["events"] / row["recovery"]["work_s"] / 1e3)


def _compare(workload: str, events: int, folder: Path, tell: Tell) -> Quantities:
    """Run and recover under every scheme; and the model for as many workers as the paper had."""
    plan = _plan(folder, [workload], SCHEMES, events)
    rows = studies.compare(plan, tell)
    measured: dict[str, list[Point]] = {
        "throughput": [(workload, row["scheme"], row["throughput_per_s"] / 1e3) for row in rows],
        "recovery": [(workload, row["scheme"], row["detection_s"] + row["recovery"]["work_s"])
                     for row in rows if row["scheme"] != "none"],
        "memory": [(workload, row["scheme"], row["run"]["peak_bytes"] / 1e6) for row in rows],
        "logged": [(workload, row["scheme"], row["run"]["bytes_logged"] / 1e6) for row in rows],
        "breakdown": [(f"{workload}, {part}", row["scheme"],
                       row["recovery"]["breakdown"][f"{part}_s"])
                      for row in rows if row["scheme"] != "none" for part in PARTS],
    }  # fmt: skip
    spans = studies.makespans(plan, rows, tell)[workload]
    measured["model"] = [
        (f"{workload}, {scheme}", span.workers, seconds)
        for span in spans
        for scheme, seconds in span.seconds.items()
    ]
    measured["modelled gain"] = [(workload, span.workers, span.gain) for span in spans]
    return measured


def _factors(workload: str, events: int, folder: Path, tell: Tell) -> Quantities:
    rows = studies.factors(_plan(folder, [workload], ("fast",), 2 * events), tell)
    return {"recovery": [(workload, row["step"], row["recovery"]["work_s"]) for row in rows]}


def _threads(workload: str, events: int, schemes: Sequence[str], counts: Sequence[int],
             folder: Path, tell: Tell) -> Quantities:  # fmt: skip
    rows = studies.scalability(_plan(folder, [workload], schemes, 2 * events), tell, counts)
    return {
        "recovered": [
            (f"{workload}, {row['scheme']}", row["threads"], _recovered_per_s(row)) for row in rows
        ]
    }


def _sensitivity(knob: str, values: Sequence[float], schemes: Sequence[str], events: int,
                 folder: Path, tell: Tell) -> Quantities:  # fmt: skip
    rows = studies.sensitivity(_plan(folder, (), schemes, 4 * events), tell, {knob: values})
    return {
        "recovered": [
            (f"{knob}, {row['scheme']}", row["value"], _recovered_per_s(row)) for row in rows
        ]
    }


def _epochs(
    contention: str, events: int, sizes: Sequence[int], folder: Path, tell: Tell
) -> Quantities:
    rows = studies.commit_epochs(_plan(folder, (), ("fast",), events), tell, [contention], sizes)
    return {
        "throughput": [(contention, row["epoch_events"], row["throughput_per_s"] / 1e3) for row in rows],
        "recovered": [
            (contention, row["epoch_events"], row["recovered_per_s"] / 1e3) for row in rows
        ],
    }  # fmt: skip


def _selective(events: int, shares: Sequence[float], folder: Path, tell: Tell) -> Quantities:
    rows = studies.selective_logging(_plan(folder, ("ledger",), ("fast",), events), tell, shares)
    return {
        "efficiency": [(row["logging"], row["value"], row["efficiency"]) for row in rows],
        "logged": [
            (row["logging"], row["value"], row["run"]["bytes_logged"] / 1e6) for row in rows
        ],
    }


def _each(
    choices: Sequence[str], about_s: float, perform: Callable[[Effort, str], Any]
) -> Callable[[Effort], Sequence[Step]]:
    def steps(effort: Effort) -> Sequence[Step]:
        return [
            Step(choice, number, about_s * (1 if effort.quick else 8), perform(effort, choice))
            for number in range(1 if effort.quick else effort.repeats)
            for choice in choices
        ]

    return steps


def _events(effort: Effort) -> int:
    return 32_768 if effort.quick else 200_000


def _few(effort: Effort) -> Sequence[str]:
    return ("checkpoint", "fast") if effort.quick else RECOVERING


def _values(effort: Effort, knob: str) -> Sequence[float]:
    values = studies.SWEEPS[knob][1]
    return (values[0], values[-1]) if effort.quick else values


_COMMAND = "everstream bench transactions --study"
EXPERIMENTS = (
    Experiment("morphstream-compare", PAPER, f"{_COMMAND} compare --study model", _each(
        tuple(WORKLOADS), 45, lambda effort, one: partial(_compare, one, _events(effort)))),
    Experiment("morphstream-factors", PAPER, f"{_COMMAND} factors", _each(
        tuple(WORKLOADS), 15, lambda effort, one: partial(_factors, one, _events(effort)))),
    Experiment("morphstream-threads", PAPER, f"{_COMMAND} scalability", _each(
        tuple(WORKLOADS), 15, lambda effort, one: partial(
            _threads, one, _events(effort), _few(effort), (1, 2) if effort.quick else (1, 2, 4)))),
    Experiment("morphstream-sensitivity", PAPER, f"{_COMMAND} sensitivity", _each(
        tuple(studies.SWEEPS), 15, lambda effort, one: partial(
            _sensitivity, one, _values(effort, one), _few(effort), _events(effort)))),
    Experiment("morphstream-epochs", PAPER, f"{_COMMAND} epochs", _each(
        tuple(studies.CONTENTION), 8, lambda effort, one: partial(
            _epochs, one, 2 * _events(effort),
            (1024, 8192) if effort.quick else studies.EPOCH_SIZES))),
    Experiment("morphstream-selective", PAPER, f"{_COMMAND} selective", _each(
        ("ledger",), 30, lambda effort, _: partial(
            _selective, _events(effort), (0.1, 0.9) if effort.quick else studies.SHARES))),
)  # fmt: skip

SCALE = (
    "2 threads on 2 cores instead of 36, 32,768 (quick) or 200,000 events a run; each operation "
    "takes 8 µs. What more workers would do is a model, named so"
)
_TWO_THREADS = (
    "with two threads there is little parallelism for it to regain; the model shows what more "
    "workers would allow"
)
_OTHER_MACHINE = "memory and contention, which the paper's machine has, are free in the model"


def _next_best(found: Found, workload: str) -> float | None:
    """The next best scheme's recovery by that of `fast`."""
    others = [found.value("recovery", workload, scheme) for scheme in OTHERS]
    known = [value for value in others if value is not None]
    return ratio(min(known), found.value("recovery", workload, "fast")) if known else None


def _modelled(found: Found, workload: str) -> float | None:
    return found.value("modelled gain", workload, PAPER_WORKERS)


def _by(
    found: Found, quantity: str, above: str, below: str, workload: str = "ledger"
) -> float | None:
    return ratio(found.value(quantity, workload, above), found.value(quantity, workload, below))


def _recovery_figure(label: str, workload: str) -> Exhibit:
    return Exhibit(
        PAPER, label, f"{workload}: where the time of a recovery goes", ("morphstream-compare",), SCALE,
        (
            Statement(f"{workload}: recovery of the next best scheme against fast, measured",
                      PAPER_GAIN[workload], partial(_next_best, workload=workload), "at least",
                      otherwise=_TWO_THREADS),
            Statement(f"{workload}: the same on {PAPER_WORKERS} workers, modelled",
                      PAPER_GAIN[workload], partial(_modelled, workload=workload), "at least",
                      because=_OTHER_MACHINE, otherwise="the longest chain of this workload, or its "
                      "share of aborts, limits every scheme alike"),
        ),
        (Panel("breakdown", "bars", "", "seconds of a thread"),),
        {"modelled gain": [(workload, PAPER_WORKERS, PAPER_GAIN[workload])]},
        curves=workload,
    )  # fmt: skip


def _step_gain(found: Found, workload: str, step: str) -> float | None:
    """The step that is the first with an optimisation, against the one before."""
    places = [str(at) for at, _ in found.curve("recovery", workload)]
    if step not in places:
        return None
    return _by(found, "recovery", places[places.index(step) - 1], step, workload)


def _throughput_share(found: Found, below: str) -> float | None:
    """Of `fast` to another scheme, on average over the workloads, as a loss in per cent."""
    shares = [_by(found, "throughput", "fast", below, workload) for workload in WORKLOADS]
    known = [share for share in shares if share is not None]
    return (1 - sum(known) / len(known)) * 100 if known else None


def _over_logs(found: Found) -> float | None:
    """The largest gain in throughput over a scheme with logs, in per cent."""
    gains = [_by(found, "throughput", "fast", one, load) for one in LOGS for load in WORKLOADS]
    known = [gain for gain in gains if gain is not None]
    return (max(known) - 1) * 100 if known else None


def _memory(scheme: str, printed: float) -> Statement:
    def take(found: Found) -> float | None:
        share = _by(found, "memory", scheme, "checkpoint")
        return None if share is None else (share - 1) * 100

    return Statement(
        f"memory that {scheme} needs more than checkpoints", printed, take, "at most", unit=" %",
        because="logs are columns that are written and dropped epoch by epoch, and the process "
        "around them is most of what is counted",
        otherwise="the process is small, so that a log weighs more",
    )  # fmt: skip


def _slope(found: Found, quantity: str, curve: str) -> float | None:
    return found.gain(quantity, curve)


def _trend(contention: str, quantity: str, words: str, goal: Any) -> Statement:
    return Statement(
        f"{contention}: {words} with the longest epochs against the shortest", None,
        partial(_slope, quantity=quantity, curve=contention), goal, 1.0,
        otherwise="on two threads an epoch's fixed cost outweighs what skew does to the balance",
    )  # fmt: skip


_TRENDS = (
    *(_trend(one, "throughput", "throughput at run time", "at least") for one in ("LSFD", "LSMD")),
    *(_trend(one, "throughput", "throughput at run time", "at most") for one in ("HSFD", "HSMD")),
    *(_trend(one, "recovered", "events recovered a second", "at least")
      for one in ("LSFD", "HSFD", "HSMD")),
)  # fmt: skip


def _selective_gain(found: Found) -> float | None:
    """Where most transactions cross partitions: the efficiency of selective logging by that of full."""
    curve = found.curve("efficiency", "selective")
    if not curve:
        return None
    return ratio(curve[-1][1].mean, found.value("efficiency", "full", curve[-1][0]))


def _fast_by_best(found: Found, knob: str) -> float | None:
    """At the last value of the knob: events recovered by fast against the best other scheme."""
    fast = found.values("recovered", f"{knob}, fast")
    others = [found.values("recovered", f"{knob}, {scheme}") for scheme in OTHERS]
    last = [values[-1] for values in others if values]
    return ratio(fast[-1], max(last)) if fast and last else None


def _knob_figure(label: str, knob: str, what: str) -> Exhibit:
    return Exhibit(
        PAPER, label, f"grep and sum by {what}", ("morphstream-sensitivity",), SCALE,
        (
            Statement(f"events recovered a second by fast against the best other scheme, at the most "
                      f"{what}", None, partial(_fast_by_best, knob=knob), "at least", 1.0,
                      otherwise=_TWO_THREADS),
        ),
        (Panel("recovered", "lines", what, "thousand events recovered/s", log=True),),
        curves=f"{knob}, ",
    )  # fmt: skip


_SECONDS: list[Point] = [("ledger", "checkpoint", 10.0), ("ledger", "wal", 37.0)]
EXHIBITS = (
    Exhibit(
        PAPER, "figure 2", "streaming ledger: throughput and recovery of known approaches",
        ("morphstream-compare",), SCALE,
        (
            Statement("recovery with command logs against that from a checkpoint", 3.7,
                      partial(_by, quantity="recovery", above="wal", below="checkpoint"),
                      "at least", bound=1.0, tolerance=1e9,
                      otherwise="on two threads, redoing commands in order costs hardly more than "
                      "in parallel, and aborted events need not be redone"),
        ),
        (Panel("throughput", "bars", "", "thousand events/s"), Panel("recovery", "bars", "", "seconds")),
        {"recovery": _SECONDS}, curves="ledger",
    ),
    Exhibit(
        PAPER, "figure 9", "run time against recovery, by the length of an epoch",
        ("morphstream-epochs",), SCALE, _TRENDS,
        (
            Panel("throughput", "lines", "events per epoch", "thousand events/s"),
            Panel("recovered", "lines", "events per epoch", "thousand events recovered/s"),
        ),
    ),
    _recovery_figure("figure 11a", "ledger"),
    _recovery_figure("figure 11b", "grep-sum"),
    _recovery_figure("figure 11c", "toll"),
    Exhibit(
        PAPER, "figure 11d", "what each optimisation brings", ("morphstream-factors",), SCALE,
        tuple(
            Statement(f"{workload}: recovery before {step} against after", None,
                      partial(_step_gain, workload=workload, step=step), "at least", 1.0,
                      otherwise=_TWO_THREADS)
            for workload, step in (("ledger", "+ restructure"), ("toll", "+ abort pushdown"),
                                   ("grep-sum", "+ task assignment"))
        ),
        (Panel("recovery", "bars", "", "seconds"),),
    ),
    Exhibit(
        PAPER, "figure 12a", "throughput at run time", ("morphstream-compare",), SCALE,
        (
            Statement("throughput that fast costs against none", 12.1,
                      partial(_throughput_share, below="none"), "at most", tolerance=0.1, unit=" %",
                      least=-5.0,
                      because="a log is a few columns per epoch, written in the background",
                      otherwise="input events are persisted and results logged on the same two cores"),
            Statement("throughput that fast costs against checkpoints", 5.4,
                      partial(_throughput_share, below="checkpoint"), "at most", tolerance=0.1, least=-5.0,
                      unit=" %",
                      because="a log is a few columns per epoch, written in the background",
                      otherwise="one run of a few tenths of a second on two shared cores cannot tell "
                      "a few per cent"),
            Statement("the largest gain of fast over schemes with logs", 30.0, _over_logs,
                      "at least", unit=" %",
                      otherwise="our other schemes write columns, too, and cost less than the paper's"),
        ),
        (Panel("throughput", "bars", "", "thousand events/s"),),
    ),
    Exhibit(
        PAPER, "figure 12b", "ledger: efficiency of logging by share of transactions over partitions",
        ("morphstream-selective",), SCALE,
        (
            Statement("efficiency of selective logging against full, at the largest share", None,
                      _selective_gain, "at least", 1.0,
                      otherwise="full logging costs little here, so that there is little to save"),
        ),
        (Panel("efficiency", "lines", "share over partitions", "efficiency"),
         Panel("logged", "lines", "share over partitions", "MB logged")),
    ),
    Exhibit(
        PAPER, "figure 12c", "ledger: memory at run time", ("morphstream-compare",), SCALE,
        (_memory("fast", 20.0), _memory("lsn-vector", 38.0), _memory("dependency", 35.0)),
        (Panel("memory", "bars", "", "MB, most"), Panel("logged", "bars", "", "MB logged")),
        curves="ledger",
    ),
    Exhibit(
        PAPER, "figure 12d", "ledger: where run time goes", (), "",
        not_here="logs are written by a thread in the background, so that its time of I/O is not time "
        "of the run; figure 12a has what a scheme costs in all, and 12c what it writes",
    ),
    Exhibit(
        PAPER, "figure 13", "events recovered by threads", ("morphstream-threads", "morphstream-compare"),
        SCALE,
        (
            *(
                Statement(f"{workload}: events recovered by fast with the most threads against one",
                          None, partial(_slope, quantity="recovered", curve=f"{workload}, fast"),
                          "at least", 1.0, otherwise="two cores are shared with all else that runs")
                for workload in WORKLOADS
            ),
        ),
        (Panel("recovered", "lines", "threads", "thousand events recovered/s"),
         Panel("model", "lines", "workers (model)", "modelled makespan, s", log=True)),
    ),
    _knob_figure("figure 14a", "multi_partition", "transactions over partitions"),
    _knob_figure("figure 14b", "skew", "skew"),
    _knob_figure("figure 14c", "aborts", "aborts"),
)  # fmt: skip
