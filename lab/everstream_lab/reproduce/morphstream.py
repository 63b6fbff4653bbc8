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
    shown,
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
OVERHEADS = ("io", "tracking", "sync")
"""What figure 12d is made of."""


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
        "overhead": [(f"{workload}, {part}", row["scheme"], row["run"]["overheads"][f"{part}_s"])
                     for row in rows for part in OVERHEADS],
        "run time": [(f"{workload}, {part}", row["scheme"], row["run"]["breakdown"][f"{part}_s"])
                     for row in rows for part in PARTS[1:]],
        "waited": [(workload, row["scheme"], row["disturbed"] * 100) for row in rows],
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
        tuple(WORKLOADS), 30, lambda effort, one: partial(_compare, one, _events(effort)))),
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
NOTABLE_WAIT_PERCENT = 5.0


def _modelled_here(workload: str) -> Callable[[Found], str | None]:
    """What the schedules alone allow with as few workers as there are here."""

    def why(found: Found) -> str | None:
        here, there = (found.value("modelled gain", workload, one) for one in (2, PAPER_WORKERS))
        if here is None or there is None or here >= PAPER_GAIN[workload]:
            return None
        return (
            f"two threads leave little parallelism to regain: a model of the same schedules gives "
            f"{shown(here)} with 2 workers and {shown(there)} with {PAPER_WORKERS}"
        )

    return why


def _disturbed(found: Found) -> str | None:
    """Whether threads had to wait for a core, as the kernel counts it."""
    waits = [wait for workload in WORKLOADS for wait in found.values("waited", workload)]
    most = max(waits, default=0.0)
    if most < NOTABLE_WAIT_PERCENT:
        return None
    return f"threads waited for a core for up to {shown(most)} % of a run"


def _cost_of_parts(found: Found) -> str | None:
    """What fast does besides the work itself, as a share of all that a run does."""
    parts, run = 0.0, 0.0
    for workload in WORKLOADS:
        for part in ("tracking", "sync"):
            parts += found.value("overhead", f"{workload}, {part}", "fast") or 0.0
        for part in PARTS[1:]:
            run += found.value("run time", f"{workload}, {part}", "fast") or 0.0
    if not run:
        return None
    return (
        f"tracking and synchronization take {shown(parts / (run + parts) * 100)} % of its time, and "
        "what is written is written by another thread"
    )


def _steps_differ_little(workload: str) -> Callable[[Found], str | None]:
    """How far apart all steps are: what one brings cannot be more."""

    def why(found: Found) -> str | None:
        values = found.values("recovery", workload)
        if len(values) < 2:
            return None
        spread = (max(values) / min(values) - 1) * 100
        if spread > 25:
            return None
        return f"on two threads all steps are within {shown(spread)} % of each other"

    return why


def _next_best(found: Found, workload: str) -> float | None:
    """The next best scheme's recovery by that of `fast`."""
    others = [found.value("recovery", workload, scheme) for scheme in OTHERS]
    known = [value for value in others if value is not None]
    return ratio(min(known), found.value("recovery", workload, "fast")) if known else None


def _modelled(found: Found, workload: str) -> float | None:
    return found.value("modelled gain", workload, PAPER_WORKERS)


def _chain_bound(found: Found, workload: str) -> str | None:
    """Whether more workers than the paper's bring `fast` nothing: then chains are what limits it."""
    curve = [(at, one.mean) for at, one in found.curve("model", f"{workload}, fast")]
    here = next((seconds for at, seconds in curve if at == PAPER_WORKERS), None)
    if here is None or not curve or curve[-1][1] < 0.95 * here:
        return None
    return (
        f"the longest chain of dependent operations limits it: with {curve[-1][0]:g} workers the "
        f"model recovers in {shown(curve[-1][1] / here * 100)} % of the time that "
        f"{PAPER_WORKERS} need"
    )


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
                      otherwise=_modelled_here(workload)),
            Statement(f"{workload}: the same on {PAPER_WORKERS} workers, modelled",
                      PAPER_GAIN[workload], partial(_modelled, workload=workload), "at least",
                      because="memory and contention, which the paper's machine has, are free in "
                      "the model", otherwise=partial(_chain_bound, workload=workload)),
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
        because=partial(_log_in_memory, scheme=scheme),
        otherwise=partial(_log_in_memory, scheme=scheme),
    )  # fmt: skip


def _log_in_memory(found: Found, scheme: str) -> str | None:
    logged = found.value("logged", "ledger", scheme)
    memory = found.value("memory", "ledger", "checkpoint")
    if logged is None or memory is None:
        return None
    return (
        f"{scheme} writes {shown(logged)} MB in the whole run, and the process has "
        f"{shown(memory)} MB with checkpoints alone"
    )


def _slope(found: Found, quantity: str, curve: str) -> float | None:
    return found.gain(quantity, curve)


def _trend(contention: str, quantity: str, words: str, goal: Any) -> Statement:
    return Statement(
        f"{contention}: {words} with the longest epochs against the shortest", None,
        partial(_slope, quantity=quantity, curve=contention), goal, 1.0,
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


def _serial_by_parallel(found: Found) -> str | None:
    """What redoing in order costs against redoing in parallel, which needs more than two threads."""
    wal, checkpoint = (found.value("recovery", "ledger", one) for one in ("wal", "checkpoint"))
    spans = {
        scheme: dict(found.curve("model", f"ledger, {scheme}")) for scheme in ("wal", "checkpoint")
    }
    if wal is None or checkpoint is None or not all(2 in span for span in spans.values()):
        return None
    modelled = spans["wal"][2].mean / spans["checkpoint"][2].mean
    if modelled > 1.5:
        return None
    return (
        f"two threads redo events hardly faster than one redoes commands: the model of both "
        f"schedules gives {shown(modelled)} with 2 workers"
    )


def _written_less(found: Found) -> str | None:
    """What selective logging saves at the largest share."""
    full, selective = found.curve("logged", "full"), found.curve("logged", "selective")
    if not full or not selective:
        return None
    return (
        f"at the largest share it writes {shown(selective[-1][1].mean)} MB and full logging "
        f"{shown(full[-1][1].mean)} MB"
    )


def _io_is_largest(found: Found) -> float | None:
    """Over the schemes with logs, the least of input and output against the larger other part."""
    shares = []
    for scheme in (*LOGS, "fast"):
        io, *others = (found.value("overhead", f"ledger, {part}", scheme) for part in OVERHEADS)
        known = [other for other in others if other is not None]
        if io is None or not known or not max(known):
            return None
        shares.append(io / max(known))
    return min(shares)


def _vectors_by_fast(found: Found) -> float | None:
    """Input, output and tracking under vectors of log positions against under fast."""
    sums = [
        sum(
            found.value("overhead", f"ledger, {part}", scheme) or 0.0 for part in ("io", "tracking")
        )
        for scheme in ("lsn-vector", "fast")
    ]
    return ratio(*sums)


def _durably_persisted(found: Found) -> str | None:
    logged = {scheme: found.value("logged", "ledger", scheme) for scheme in ("lsn-vector", "fast")}
    vectors, fast = logged["lsn-vector"], logged["fast"]
    if vectors is None or fast is None:
        return None
    return (
        f"fast also persists its input events, batch by batch, besides a log of {shown(fast)} MB; "
        f"that of lsn-vector has {shown(vectors)} MB"
    )


def _knob_figure(label: str, knob: str, what: str) -> Exhibit:
    return Exhibit(
        PAPER, label, f"grep and sum by {what}", ("morphstream-sensitivity",), SCALE,
        (
            Statement(f"events recovered a second by fast against the best other scheme, at the most "
                      f"{what}", None, partial(_fast_by_best, knob=knob), "at least", 1.0),
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
                      "at least", bound=1.0, tolerance=1e9, otherwise=_serial_by_parallel),
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
                      otherwise=_steps_differ_little(workload))
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
                      least=-5.0, because=_cost_of_parts, otherwise=_disturbed),
            Statement("throughput that fast costs against checkpoints", 5.4,
                      partial(_throughput_share, below="checkpoint"), "at most", tolerance=0.1, least=-5.0,
                      unit=" %", because=_cost_of_parts, otherwise=_disturbed),
            Statement("the largest gain of fast over schemes with logs", 30.0, _over_logs,
                      "at least", unit=" %", otherwise=_disturbed),
        ),
        (Panel("throughput", "bars", "", "thousand events/s"),),
    ),
    Exhibit(
        PAPER, "figure 12b", "ledger: efficiency of logging by share of transactions over partitions",
        ("morphstream-selective",), SCALE,
        (
            Statement("efficiency of selective logging against full, at the largest share", None,
                      _selective_gain, "at least", 1.0, otherwise=_written_less),
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
        PAPER, "figure 12d", "ledger: where run time goes", ("morphstream-compare",),
        f"{SCALE}. Logs are written by a thread of their own: input and output overlaps with the rest",
        (
            Statement("input and output against the larger of tracking and synchronization, the "
                      "least of all schemes with logs", None, _io_is_largest, "at least", 1.0),
            Statement("input, output and tracking under lsn-vector against under fast", None,
                      _vectors_by_fast, "at least", 1.0, otherwise=_durably_persisted),
        ),
        (Panel("overhead", "bars", "", "seconds of overhead"),
         Panel("run time", "bars", "", "seconds of a thread")),
        curves="ledger",
    ),
    Exhibit(
        PAPER, "figure 13", "events recovered by threads", ("morphstream-threads", "morphstream-compare"),
        SCALE,
        (
            *(
                Statement(f"{workload}: events recovered by fast with the most threads against one",
                          None, partial(_slope, quantity="recovered", curve=f"{workload}, fast"),
                          "at least", 1.0, otherwise=_disturbed)
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
