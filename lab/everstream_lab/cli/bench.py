"""`everstream bench`: the measurements, each with `--json` for its figures."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.options import JsonFile
from everstream.errors import UserError
from everstream.pipeline.times import size_bytes
from everstream_lab.bench.report import Progress, Report, shown
from everstream_lab.cli.showing import run_benchmark

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
    """Measure what the engine costs: its throughput against a bare loop over the same batches.

    A source worker and a filter-and-count worker with a channel between two processes, checkpoints
    every second, against one plain Python loop calling the same generator and operators.

    With --metrics: runs that measure themselves against runs that do not, in turn, in large and in
    small batches; and the processor time of each process of a pipeline that has nothing to do.

    Example: everstream bench overhead --json overhead.json
    """
    if metrics:
        from everstream_lab.bench import metrics_cost

        run_benchmark(
            lambda progress: metrics_cost.measure(
                records=checkpoint_records, rounds=rounds, progress=progress
            ),
            json_file,
        )
        return
    from everstream_lab.bench.overhead import measure

    run_benchmark(
        lambda progress: measure(
            records=records,
            python_records=python_records,
            checkpoint_records=checkpoint_records,
            rounds=rounds,
            progress=progress,
        ),
        json_file,
    )


@bench.command()
def restart(
    rate: Annotated[float, typer.Option(help="Records per second.")] = 20_000,
    rounds: Annotated[int, typer.Option(help="Runs with one kill each.")] = 3,
    spares: Annotated[int, typer.Option(min=0, help="Processes that stand by.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Measure how fast a pipeline recovers from SIGKILL of a worker, at a steady load.

    Prints the time from the kill to the first new output and until the run has caught up (best
    and median of several runs), and checks that nothing is lost or duplicated.

    Example: everstream bench restart --json restart.json
    """
    from everstream_lab.bench.recovery.restart import measure_rounds

    run_benchmark(
        lambda progress: measure_rounds(rate=rate, rounds=rounds, spares=spares, progress=progress),
        json_file,
    )


@bench.command("scale")
def scale_(
    rate: Annotated[float, typer.Option(help="Records per second.")] = 20_000,
    json_file: JsonFile = None,
) -> None:
    """Measure how long a running pipeline pauses while it is rescaled, at a steady load.

    An operator with state gets 4, 1 and 3 shards instead of 2. Prints the longest time without output
    around each change, and checks that nothing is lost or duplicated.

    Example: everstream bench scale --json scale.json
    """
    from everstream_lab.bench.scaling import measure

    run_benchmark(lambda progress: measure(rate=rate, progress=progress), json_file)


@bench.command()
def prediction(
    rate: Annotated[float, typer.Option(help="Records per second.")] = 10_000,
    utilisation: Annotated[float, typer.Option(help="Share of its capacity in use.")] = 0.6,
    json_file: JsonFile = None,
) -> None:
    """Compare the catch-up after a kill with the prediction of the planner's backlog formula.

    Measures the capacity at full speed, kills a paced run once, predicts from its rate, its
    checkpoints and its outage how long catching up takes, and compares.

    Example: everstream bench prediction --json prediction.json
    """
    from everstream_lab.bench.prediction import measure

    run_benchmark(
        lambda progress: measure(rate=rate, utilisation=utilisation, progress=progress), json_file
    )


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
    """Measure what checkpoints cost an operator with 100 MB of state (ResiPipe's use case 4).

    The thesis lost 8.17 % of its throughput at its 15 s interval. With --size 1g --changed 0.01: ten
    times as much state, of which as much changes. With --state disk: 20 million keys, with the memory of
    the worker, what checkpoints every 10 s cost, and how long a recovery takes.

    Example: everstream bench state --json state.json
    """
    if state is Kept.disk:
        from everstream_lab.bench.state import disk_state

        run_benchmark(
            lambda progress: disk_state.measure(keys=keys, rounds=rounds or 3, progress=progress),
            json_file,
        )
        return
    from everstream_lab.bench.state.large_state import measure

    run_benchmark(
        lambda progress: measure(
            state_bytes=size_bytes("--size", size),
            changed=changed,
            rounds=rounds or 5,
            factor=factor,
            progress=progress,
        ),
        json_file,
    )


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
    """Measure ResiPipe's use cases 1 to 3: throughput without and with failures, beside the thesis.

    Checkpoints every 15, 30, 45 and 60 s and disabled, all divided by the factor. A process is
    killed where the thesis threw an exception.

    Example: everstream bench recovery --factor 20 --json recovery.json
    """
    from everstream_lab.bench.papers.use_cases import measure, report_of
    from everstream_lab.bench.papers.use_cases_figure import draw

    def take(progress: Progress) -> Report:
        runs = measure(factor=factor, progress=progress)
        figure.parent.mkdir(parents=True, exist_ok=True)
        draw(runs, factor, figure)
        return report_of(runs, factor)

    console.print(f"All times are those of the thesis divided by {factor:g}; our restart is not.")
    run_benchmark(take, json_file)
    console.print(f"figure drawn to {figure}")


@bench.command()
def throughput(
    rounds: Annotated[int, typer.Option(help="Rounds; the best one counts.")] = 3,
    bids: Annotated[int, typer.Option(help="Bids for NEXMark 2.")] = 200_000_000,
    words: Annotated[int, typer.Option(help="Words for the running word count.")] = 2_000_000,
    windowed_bids: Annotated[int, typer.Option(help="Bids for the windowed count.")] = 60_000_000,
    json_file: JsonFile = None,
) -> None:
    """Measure records per second from generator to exactly-once sink, beside other systems.

    NEXMark 2, a keyed running word count (Zipf over 10,000 words) and a tumbling one-second
    event-time count over 1,000 auctions, on two cores with aligned checkpoints every second.
    Times are the run's own, from the first record given to the last commit; Spark's start is not
    in them. Every output is checked. NEXMark 2 is also run keeping every second bid
    (nexmark_2_half, as FERDiS does), and the word count with ten times the words
    (word_count_long), which lasts for several checkpoints. The column microbatch is the best of
    the same with engine="microbatch".

    Example: everstream bench throughput --rounds 5 --json throughput.json
    """
    from everstream_lab.bench.throughput import measure

    run_benchmark(
        lambda progress: measure(
            bids=bids,
            words=words,
            long_words=10 * words,
            windowed_bids=windowed_bids,
            rounds=rounds,
            progress=progress,
        ),
        json_file,
    )
    console.print(
        "The peers' figures were measured elsewhere on a machine like this, not in this run."
    )


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
            help="Measure this part alone (starts, recovery, latency, idle, floors, nexmark_2, word_count, "
            "windowed_count or losses; may be given again); the other figures of an existing --json file "
            "stay in it."
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(min=1, help="How long latency and idling are measured on each engine."),
    ] = 10.0,
    json_file: JsonFile = None,
) -> None:
    """Compare the engines on the same work, and print a table with a column for each engine.

    The time to the first record of a first and of a later run, and to restore a killed worker. The
    latency of records at 1,000 per second. The processor time of a pipeline that has nothing to do.
    Then NEXMark 2, a running word count and a windowed count on two cores, epochs and checkpoints of one
    second, the engines in turn; the latter two also in native Structured Streaming with Python
    (applyInPandasWithState, and the words also by transformWithState). Then what it costs an epoch if
    caches are lost or a worker is killed. Every output is checked.

    Example: everstream bench engines --rounds 3 --json engines.json
    """
    from everstream_lab.bench.engines import ENGINES, PARTS, by_engine, measure

    body = run_benchmark(
        lambda progress: measure(
            parts=only or PARTS,
            bids=bids,
            words=words,
            windowed_bids=windowed_bids,
            native_words=native_words,
            native_bids=native_bids,
            state_bytes=state_mb << 20,
            seconds=seconds,
            rounds=rounds,
            progress=progress,
        ),
        json_file,
        keep_earlier=bool(only),
    )
    figures = body["figures"]
    table = Table("by engine", *ENGINES)
    for quantity, values in by_engine(
        {name: one["value"] for name, one in figures.items()}
    ).items():
        table.add_row(quantity, *(shown(values[one]) if one in values else "" for one in ENGINES))
    console.print(table)


@bench.command()
def latency(
    rate: Annotated[
        str, typer.Option(help="Records per second; several with commas between them.")
    ] = "1000,10000,100000",
    seconds: Annotated[float, typer.Option(min=1, help="How long each rate is measured.")] = 10.0,
    json_file: JsonFile = None,
) -> None:
    """Measure the time from when a record is due to an at-least-once sink, at steady rates.

    A paced source in one process, a count per key and the sink in another, checkpoints every second.
    Waiting counts, including that for the rest of a frame. "standstill" is the longest time without
    output; "machine" is the longest time that the machine made an idle thread wait in the same run.

    Example: everstream bench latency --rate 1000,100000 --json latency.json
    """
    from everstream_lab.bench.delays import measure_report

    rates = _rates(rate)
    run_benchmark(lambda progress: measure_report(rates, seconds, progress), json_file)


@bench.command()
def cost(
    rate: Annotated[
        str, typer.Option(help="Records per second; several with commas between them.")
    ] = "100,500,1000,4000,10000,40000,100000",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Measure this alone: map, fold, window or join; may be given again."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long each rate is measured.")] = 10.0,
    engine: Annotated[str, typer.Option(help="tasks or local.")] = "local",
    latency: Annotated[
        str, typer.Option(help="How long records may wait for others; 0: not at all.")
    ] = "5ms",
    json_file: JsonFile = None,
) -> None:
    """Measure the processor time of records at everyday rates, beside a bare loop in Python.

    A paced source of Python records, checkpoints every second, two workers. "cores" is the processor time
    of all processes of the run per second, without Spark's Java; p50 and p99 are the latency at the sink.

    Example: everstream bench cost --rate 500,4000 --only window --json cost.json
    """
    from everstream_lab.bench.cost import SHAPES, measure

    if engine not in ("tasks", "local"):
        raise UserError(f"--engine {engine}: use tasks or local.")
    rates = _rates(rate)
    run_benchmark(
        lambda progress: measure(
            rates,
            only or tuple(SHAPES),
            seconds=seconds,
            engine=engine,  # type: ignore[arg-type]
            latency=latency,
            progress=progress,
        ),
        json_file,
    )


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or any(not rate > 0 for rate in rates):
        raise UserError(f"--rate {text}: give positive numbers, as in --rate 1000,100000.")
    return rates


@bench.command()
def language(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure this part alone (map_async, timers, deduplicate, windows, top_k, running, "
            "join_as_of or processors; may be given again); the other figures of an existing --json file "
            "stay in it."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each part.")] = 3,
    json_file: JsonFile = None,
) -> None:
    """Measure what pipelines are written with, against the bare loop or built-in closest to it.

    Calls per second of map_async against a bare asyncio loop: both ask a local HTTP service that
    stalls and fails, in turn. The timers that fall due per second on one core. Records per second of
    deduplicate, windows, top_k, running functions and join_as_of on one core, beside Polars on all
    records at once. One of Spark's stateful processors in Structured Streaming and here: this part
    needs Spark 4.1 or newer.

    Example: everstream bench language --json language.json
    """
    from everstream_lab.bench.language.runner import PARTS, measure

    unknown = set(only or ()) - PARTS.keys()
    if unknown:
        raise UserError(f"--only {unknown.pop()}: the parts are {', '.join(PARTS)}.")
    run_benchmark(
        lambda progress: measure(only or list(PARTS), rounds, progress),
        json_file,
        keep_earlier=only is not None,
    )


@bench.command()
def processors(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of both.")] = 3,
    json_file: JsonFile = None,
) -> None:
    """Measure one of Spark's stateful processors in Structured Streaming and here.

    The same class runs with transformWithState there and with transform_with_state here, on the
    same batches, in turn. Both outputs are checked. Needs Spark 4.1 or newer.

    Example: everstream bench processors --json processors.json
    """
    from everstream.engine.spark.launcher import require
    from everstream_lab.bench.language.processors import figures
    from everstream_lab.bench.report import Report

    require("transformWithState for rows", (4, 1))
    run_benchmark(lambda progress: Report("processors", figures(rounds, progress)), json_file)


@bench.command("open")
def open_(
    slots: Annotated[int, typer.Option(min=1, help="Drivers that have opened the store.")] = 5_000,
    parts: Annotated[int, typer.Option(min=1, help="Part files of a file sink's shard.")] = 100_000,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows in the table of a SQLite sink.")
    ] = 5_000_000,
    json_file: JsonFile = None,
) -> None:
    """Measure how long it takes to open a long-used store, and to recover the shard of a sink.

    Each is measured with 10 slots, parts or rows and with as many as you give: the cost must not
    grow. Does not start Spark. Writes to the folder for temporary files: 5,000,000 rows need about 100 MB.

    Example: everstream bench open --slots 5000 --parts 100000 --rows 5000000

    Exit codes: 0 measured; 1 the number of blobs that are read to open the store has grown.
    """
    from everstream_lab.bench.state.opening import measure_report

    run_benchmark(lambda progress: measure_report(slots, parts, rows, progress), json_file)


@bench.command()
def takeover(
    rounds: Annotated[int, typer.Option(min=1, help="Takeovers.")] = 3,
    after: Annotated[
        str, typer.Option(help="How long the first must be silent before the second takes over.")
    ] = "1.5s",
    json_file: JsonFile = None,
) -> None:
    """Measure how fast a standby takes over when supervisor, driver and Java are killed at once.

    Two `everstream run` on one store, the second with --standby and Spark warm. Prints the time
    from SIGKILL to the second's first output, how much of it was spent waiting for a sign of life,
    and checks that the output of both together is exact.

    Example: everstream bench takeover --json takeover.json
    """
    from everstream_lab.bench.recovery.takeover import measure_rounds

    run_benchmark(
        lambda progress: measure_rounds(rounds=rounds, after=after, progress=progress), json_file
    )


@bench.command()
def load(
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Highest rate; repeat for several. Default: 10, 1,000 and 100,000."),
    ] = None,
    period: Annotated[float, typer.Option(help="Seconds a pattern takes.")] = 3.0,
    periods: Annotated[int, typer.Option(min=1, help="How many of them to run.")] = 2,
    json_file: JsonFile = None,
) -> None:
    """Compare every load pattern, through a pipeline on Spark, with its closed form.

    "off by" is the worst period's share, beyond the one item that may be due at its very end; "stall"
    the longest time that the machine made an idle thread wait, which no source can make up for.
    Then a pipeline that pauses for a second, with and without catching up: without it the backlog
    is hidden and lost.

    Example: everstream bench load --json load.json
    """
    from everstream_lab.bench.load import measure_report

    rates = rate or [10.0, 1_000.0, 100_000.0]
    run_benchmark(lambda progress: measure_report(rates, period, periods, progress), json_file)


@bench.command()
def items(
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Items that travel together; repeat. Default: 1 and 100."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="About how long each run is.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the best one counts.")] = 3,
    json_file: JsonFile = None,
) -> None:
    """Measure the time of an item from source to sink without any processing, checkpoints on.

    In one process, over a channel to another, and through a farm of two shards into an ordered sink;
    in microseconds per item, from the first one's arrival at the sink to the last one's.

    Example: everstream bench items --json items.json
    """
    from everstream_lab.bench.items import measure

    run_benchmark(lambda progress: measure(batch or [1, 100], seconds, rounds, progress), json_file)
