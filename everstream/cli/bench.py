"""`everstream bench`: the measurements, each with `--json` for its figures."""

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.json_file import JsonFile, write_json
from everstream.pipeline.sizes import size_bytes

bench = typer.Typer(
    help="Measure Everstream, in ratios taken within one run.", no_args_is_help=True
)
console = Console()


class Kept(Enum):
    memory = "memory"
    disk = "disk"


@bench.command()
def overhead(
    records: Annotated[int, typer.Option(help="Records for the column filter.")] = 20_000_000,
    python_records: Annotated[
        int, typer.Option(help="Records for the filter as a Python function.")
    ] = 4_000_000,
    checkpoint_records: Annotated[
        int, typer.Option(help="Records for the runs with checkpoints on and off.")
    ] = 100_000_000,
    rounds: Annotated[int, typer.Option(help="Rounds; each side counts its best one.")] = 5,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics", help="What measuring costs instead, and what an idle pipeline uses."
        ),
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """What the engine costs: its throughput against a bare loop over the same batches.

    A source host and a filter-and-count host with a channel between two processes, checkpoints
    every second, against one plain Python loop calling the same generator and operators.

    With --metrics: runs that measure themselves against runs that do not, in turn, in large and in
    small batches; and the processor time of each process of a pipeline that has nothing to do.

    Example: everstream bench overhead --json overhead.json
    """
    if metrics:
        _metrics_cost(checkpoint_records, rounds, json_file)
        return
    from everstream.bench.overhead import measure

    with console.status("starting Spark") as status:
        found = measure(
            records=records,
            python_records=python_records,
            checkpoint_records=checkpoint_records,
            rounds=rounds,
            progress=status.update,
        )
    table = Table("figure", "value", "target")
    table.add_row("efficiency", f"{found.efficiency:.3f}", "at least 0.9")
    table.add_row("checkpoint_cost", f"{found.checkpoint_cost:.3f}", "at most 0.03")
    table.add_row("efficiency_python", f"{found.efficiency_python:.3f}", "at least 0.9")
    for name, timing in found.timings.items():
        table.add_row(name, f"{timing.records_per_s / 1e6:.2f} M records/s", "")
    console.print(table)
    _write(json_file, found.to_json())


def _metrics_cost(records: int, rounds: int, json_file: Path | None) -> None:
    from everstream.bench.metrics_cost import measure

    with console.status("starting Spark") as status:
        found = measure(records=records, rounds=rounds, progress=status.update)
    table = Table("figure", "value", "target")
    for what, shares in (("throughput", found.throughput), ("processor", found.processor)):
        for size, share in shares.items():
            value = f"{share.cost:.4f} ({share.low:.3f} to {share.high:.3f})"
            target = "at most 0.01" if size == "large" else ""
            table.add_row(f"cost of {what}, {size} batches", value, target)
    table.add_row("idle, all Python", f"{found.idle.python_share:.2%} of a core", "at most 3 %")
    for process in found.idle.processes:
        table.add_row(f"idle, {process.name}", f"{process.cpu_share:.2%} of a core", "")
    for name, timing in found.timings.items():
        table.add_row(name, f"{timing.records_per_s / 1e6:.2f} M records/s", "")
    console.print(table)
    _write(json_file, found.to_json())


@bench.command()
def restart(
    rate: Annotated[float, typer.Option(help="Records per second.")] = 20_000,
    rounds: Annotated[int, typer.Option(help="Runs with one kill each.")] = 3,
    spares: Annotated[int, typer.Option(min=0, help="Processes that stand by.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """How fast a pipeline is back after SIGKILL of one host, at a steady load.

    Prints the time from the kill to the first new output and until it has caught up, the best
    and the median of some runs, and checks that nothing was lost or doubled.

    Example: everstream bench restart --json restart.json
    """
    from everstream.bench.restart import measure

    with console.status("starting Spark") as status:
        runs = [measure(rate=rate, spares=spares, progress=status.update) for _ in range(rounds)]
    runs.sort(key=lambda run: run.caught_up_s)
    middle = runs[len(runs) // 2]
    table = Table("figure", "best", "median", "target")
    first = "at most 0.15" if spares else "at most 1.0"
    for name, target in (("first_output_s", first), ("caught_up_s", "at most 1.5")):
        values = sorted(getattr(run, name) for run in runs)
        table.add_row(name, f"{values[0]:.3f}", f"{values[len(values) // 2]:.3f}", target)
    lost, duplicated = (sum(getattr(run, n) for run in runs) for n in ("lost", "duplicated"))
    table.add_row("lost", str(lost), str(lost), "0")
    table.add_row("duplicated", str(duplicated), str(duplicated), "0")
    console.print(table)
    _write(
        json_file,
        {
            "first_output_s": middle.first_output_s,
            "caught_up_s": middle.caught_up_s,
            "lost": lost,
            "duplicated": duplicated,
            "spares": spares,
            "runs": [vars(run) for run in runs],
        },
    )
    if lost or duplicated:
        raise typer.Exit(1)


@bench.command("scale")
def scale_(
    rate: Annotated[float, typer.Option(help="Records per second.")] = 20_000,
    json_file: JsonFile = None,
) -> None:
    """How long a running pipeline stands still while its shards are changed, at a steady load.

    An operator with state gets 4, 1 and 3 shards instead of 2. Prints the longest time without output
    around each change, and checks that nothing was lost or doubled.

    Example: everstream bench scale --json scale.json
    """
    from everstream.bench.scaling import measure

    with console.status("starting Spark") as status:
        found = measure(rate=rate, progress=status.update)
    table = Table("shards", "pause_s", "until at work, s", "target")
    for change in found.changes:
        row = (str(change.shards), f"{change.pause_s:.3f}", f"{change.asked_s:.3f}")
        table.add_row(*row, "pause at most 1")
    console.print(table)
    console.print(f"lost {found.lost}, duplicated {found.duplicated}")
    figures = {
        "pause_s": max(change.pause_s for change in found.changes),
        "lost": found.lost,
        "duplicated": found.duplicated,
        "changes": [vars(change) for change in found.changes],
    }
    _write(json_file, figures)
    if found.lost or found.duplicated:
        raise typer.Exit(1)


@bench.command()
def prediction(
    rate: Annotated[float, typer.Option(help="Records per second.")] = 10_000,
    utilisation: Annotated[float, typer.Option(help="Share of its capacity in use.")] = 0.6,
    json_file: JsonFile = None,
) -> None:
    """How well the catch-up after a kill is predicted by the planner's backlog formula.

    Measures the capacity at full speed, kills a paced run once, predicts from its rate, its
    checkpoints and its outage how long catching up takes, and compares.

    Example: everstream bench prediction --json prediction.json
    """
    from everstream.bench.prediction import measure

    with console.status("starting Spark") as status:
        found = measure(rate=rate, utilisation=utilisation, progress=status.update)
    table = Table("figure", "value", "target")
    for name, value in vars(found).items():
        targets = {"difference": "within 0.25", "lost": "0", "duplicated": "0"}
        table.add_row(name, f"{value:g}", targets.get(name, ""))
    console.print(table)
    _write(json_file, vars(found))


@bench.command()
def state(
    rounds: Annotated[
        int | None,
        typer.Option(help="Rounds; each side counts its best one. 5, or 3 with --state disk."),
    ] = None,
    factor: Annotated[float, typer.Option(help="The thesis's 15 s are divided by this.")] = 10.0,
    size: Annotated[str, typer.Option(help="Of the state in memory.", metavar="1g")] = "100m",
    changed: Annotated[
        float, typer.Option(help="The part of it that changes from one checkpoint to the next.")
    ] = 0.1,
    state: Annotated[Kept, typer.Option(help="Where the state is kept.")] = Kept.memory,
    keys: Annotated[int, typer.Option(help="With --state disk: how many.")] = 20_000_000,
    json_file: JsonFile = None,
) -> None:
    """What checkpoints cost an operator with 100 MB of state (ResiPipe's use case 4).

    The thesis lost 8.17 % of its throughput at its 15 s interval. With --size 1g --changed 0.01: ten
    times as much state, of which as much changes. With --state disk: 20 million keys, with the memory of
    the host, what checkpoints every 10 s cost, and how long a recovery takes.

    Example: everstream bench state --json state.json
    """
    if state is Kept.disk:
        _disk_state(keys, rounds or 3, json_file)
        return
    from everstream.bench.large_state import measure

    with console.status("starting Spark") as status:
        found = measure(
            state_bytes=size_bytes("--size", size),
            changed=changed,
            rounds=rounds or 5,
            factor=factor,
            progress=status.update,
        )
    table = Table("figure", "value", "thesis", "target")
    table.add_row("state_bytes", f"{found.state_bytes:,}", "", "")
    cost = f"{found.checkpoint_cost:.4f}"
    table.add_row("checkpoint_cost", cost, "0.0817", "at most 0.01")
    table.add_row("unqueued_cost", f"{found.unqueued_cost:.4f}", "", "")
    table.add_row("median_cost", f"{found.median_cost:.4f}", "", "")
    table.add_row("spread", f"{found.spread:.4f}", "", "")
    table.add_row("background_share", f"{found.background_share:.4f}", "", "")
    table.add_row("saved_bytes", f"{found.saved_bytes:,.0f}", "", "")
    table.add_row("checkpoints_per_run", f"{found.checkpoints_per_run:.1f}", "", "")
    table.add_row("largest_capture_s", f"{found.largest_capture_s:.4f}", "", "")
    console.print(table)
    _write(json_file, vars(found))


def _disk_state(keys: int, rounds: int, json_file: Path | None) -> None:
    from everstream.bench.disk_state import measure

    with console.status("starting Spark") as status:
        found = measure(keys=keys, rounds=rounds, progress=status.update)
    table = Table("figure", "value", "target")
    table.add_row("keys", f"{found.keys:,}", "")
    table.add_row("state_bytes", f"{found.state_bytes:,}", "")
    table.add_row("memory_bytes", f"{found.memory_bytes:,}", "at most 1,000,000,000")
    table.add_row("checkpoint_cost", f"{found.checkpoint_cost:.4f}", "at most 0.05")
    table.add_row("unqueued_cost", f"{found.unqueued_cost:.4f}", "")
    table.add_row("median_cost", f"{found.median_cost:.4f}", "")
    table.add_row("background_share", f"{found.background_share:.4f}", "")
    table.add_row("uploaded_bytes", f"{found.uploaded_bytes:,.0f}", "")
    table.add_row("largest_capture_s", f"{found.largest_capture_s:.4f}", "")
    table.add_row("recovery_s", f"{found.recovery_s:.3f}", "seconds")
    console.print(table)
    _write(json_file, vars(found))


@bench.command()
def recovery(
    factor: Annotated[
        float, typer.Option(help="All times of the thesis are divided by this.")
    ] = 20,
    json_file: JsonFile = None,
    figure: Annotated[Path, typer.Option(help="Where to draw the figure.")] = Path(
        "reports/recovery.png"
    ),
) -> None:
    """ResiPipe's use cases 1 to 3: throughput without and with failures, beside the thesis's.

    Checkpoints every 15, 30, 45 and 60 s and disabled, all divided by the factor. A process is
    killed where the thesis threw an exception.

    Example: everstream bench recovery --factor 20 --json recovery.json
    """
    from everstream.bench.use_cases import THESIS, THESIS_FREE, measure
    from everstream.bench.use_cases_figure import draw

    with console.status("starting Spark") as status:
        found = measure(factor=factor, progress=status.update)
    console.print(f"All times are those of the thesis divided by {factor:g}; our restart is not.")
    table = Table("use case", "interval", "failure", "records/s", "of undisturbed", "thesis")
    for one in found:
        undisturbed = next(
            other.records_per_s
            for other in found
            if not other.failure
            and (other.use_case, other.interval_s) == (one.use_case, one.interval_s)
        )
        said = THESIS.get(one.use_case, {}).get(one.interval_s) if one.failure else None
        table.add_row(
            str(one.use_case),
            "disabled" if one.interval_s is None else f"{one.interval_s:g} s",
            "yes" if one.failure else "no",
            f"{one.records_per_s:.2f}",
            f"{one.records_per_s / undisturbed:.2f}",
            "" if said is None else f"{said / THESIS_FREE[one.use_case]:.2f} ({said} records/s)",
        )
    console.print(table)
    figure.parent.mkdir(parents=True, exist_ok=True)
    draw(found, factor, figure)
    console.print(f"figure drawn to {figure}")
    _write(json_file, {"factor": factor, "runs": [vars(one) for one in found]})


@bench.command()
def throughput(
    rounds: Annotated[int, typer.Option(help="Rounds; the best one counts.")] = 3,
    bids: Annotated[int, typer.Option(help="Bids for NEXMark 2.")] = 200_000_000,
    words: Annotated[int, typer.Option(help="Words for the running word count.")] = 2_000_000,
    windowed_bids: Annotated[int, typer.Option(help="Bids for the windowed count.")] = 60_000_000,
    json_file: JsonFile = None,
) -> None:
    """Records per second from generator to exactly-once sink, beside other systems' figures.

    NEXMark 2, a keyed running word count (Zipf over 10,000 words) and a tumbling one-second
    event-time count over 1,000 auctions, on two cores with aligned checkpoints every second.
    Times are the run's own, from the first record given to the last commit; Spark's start is not
    in them. Every output is checked. NEXMark 2 is also run keeping every second bid
    (nexmark_2_half, as FERDiS does), and the word count with ten times the words
    (word_count_long), which lasts for several checkpoints. The column microbatch is the best of
    the same with engine="microbatch".

    Example: everstream bench throughput --rounds 5 --json throughput.json
    """
    from everstream.bench.throughput import measure

    with console.status("starting Spark") as status:
        found = measure(
            bids=bids,
            words=words,
            long_words=10 * words,
            windowed_bids=windowed_bids,
            rounds=rounds,
            progress=status.update,
        )
    head = ("million per second", "best", "median", "microbatch", "target", "best peer")
    table = Table(*head, "PyFlink DataStream")
    for rate in found.rates:
        load = rate.load
        peer, peer_per_s = load.best_peer
        table.add_row(
            rate.label,
            f"{rate.best_per_s / 1e6:.2f}",
            f"{rate.median_per_s / 1e6:.2f}",
            f"{rate.microbatch_per_s / 1e6:.2f}",
            f"{load.target_per_s / 1e6:g}",
            f"{peer_per_s / 1e6:g} {peer}",
            f"{load.python_peer_per_s / 1e6:g}",
        )
    console.print(table)
    console.print(
        "The peers' figures were measured elsewhere on a machine like this, not in this run."
    )
    _write(json_file, found.to_json())


@bench.command()
def engines(
    rounds: Annotated[int, typer.Option(help="Rounds; the best one of each engine counts.")] = 2,
    bids: Annotated[int, typer.Option(help="Bids for NEXMark 2.")] = 100_000_000,
    words: Annotated[int, typer.Option(help="Words for the running word count.")] = 10_000_000,
    windowed_bids: Annotated[int, typer.Option(help="Bids for the windowed count.")] = 30_000_000,
    native_words: Annotated[
        int, typer.Option(help="Words in each trigger of native Structured Streaming.")
    ] = 100_000,
    native_bids: Annotated[
        int,
        typer.Option(
            help="Bids in each trigger of native Structured Streaming; divides a million."
        ),
    ] = 250_000,
    state_mb: Annotated[int, typer.Option(help="MB of state when caches are lost.")] = 100,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure this part alone (floors, nexmark_2, word_count, windowed_count or losses; may "
            "be said again); the other figures of an existing --json file stay in it."
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Both engines on the same work: the least that an epoch costs, and throughput side by side.

    NEXMark 2, a running word count and a windowed count on two cores, epochs and checkpoints of one
    second, the engines in turn; the latter two also in native Structured Streaming with Python
    (applyInPandasWithState, and the words also by transformWithState). Then what it costs an epoch if
    caches are lost or a worker is killed. Every output is checked.

    Example: everstream bench engines --rounds 3 --json engines.json
    """
    from everstream.bench.engines import PARTS, measure, together

    with console.status("starting Spark") as status:
        found = measure(
            parts=only or PARTS,
            bids=bids,
            words=words,
            windowed_bids=windowed_bids,
            native_words=native_words,
            native_bids=native_bids,
            state_bytes=state_mb << 20,
            rounds=rounds,
            progress=status.update,
        )
    table = Table("figure", "value", "target")
    targets = {"stateless": "at most 120 ms", "keyed": "at most 200 ms"}
    for name, floor_ms in found.floors_ms.items():
        table.add_row(f"epoch floor, {name}", f"{floor_ms:.0f} ms", targets[name])
    for one in found.compared:
        for engine in one.rounds_s:
            rate = f"{one.per_s(engine) / 1e6:.2f} M records/s"
            table.add_row(f"{one.load.name}, {engine}", rate, "")
        table.add_row(f"{one.load.name}, ratio", f"{one.ratio:.2f}", "at least 0.6")
        for way, per_s in one.native_per_s.items():
            table.add_row(f"{one.load.name}, native {way}", f"{per_s / 1e6:.3f} M records/s", "")
        if one.times_native is not None:
            times = f"{one.times_native:.0f} times"
            table.add_row(f"{one.load.name}, against native", times, "at least 5 times")
    if found.losses is not None:
        lost, killed = found.losses.caches_lost_s, found.losses.worker_killed_s
        table.add_row("epoch with half the caches lost", f"{lost:+.2f} s", "at most +0.30 s")
        table.add_row("epoch with a worker killed", f"{killed:+.2f} s", "at most +1.00 s")
    console.print(table)
    earlier = json.loads(json_file.read_text()) if only and json_file and json_file.exists() else {}
    _write(json_file, together(earlier, found.to_json()))


def _write(path: Path | None, body: dict[str, Any]) -> None:
    if path is not None:
        write_json(path, body)
        console.print(f"figures written to {path}")
