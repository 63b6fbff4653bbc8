"""`everstream bench transactions`: recovery schemes compared by killing real processes."""

import platform
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.options import write_json


class WorkloadName(StrEnum):
    LEDGER = "ledger"
    GREP_SUM = "grep-sum"
    TOLL = "toll"


class SchemeName(StrEnum):
    NONE = "none"
    CHECKPOINT = "checkpoint"
    WAL = "wal"
    DEPENDENCY = "dependency"
    LSN_VECTOR = "lsn-vector"
    FAST = "fast"
    DELTA = "delta"


class Study(StrEnum):
    COMPARE = "compare"
    FACTORS = "factors"
    SCALABILITY = "scalability"
    SENSITIVITY = "sensitivity"
    EPOCHS = "epochs"
    SELECTIVE = "selective"
    SHARDS = "shards"
    MODEL = "model"
    ALL = "all"


def register(bench: typer.Typer) -> None:
    """Add the command to the `bench` group."""
    bench.command("transactions")(transactions)


def transactions(
    workload: Annotated[
        list[WorkloadName] | None, typer.Option(help="A workload; repeat for several.")
    ] = None,
    scheme: Annotated[
        list[SchemeName] | None, typer.Option(help="A recovery scheme; repeat for several.")
    ] = None,
    study: Annotated[
        list[Study] | None, typer.Option(help="What to measure; repeat for several.")
    ] = None,
    events: Annotated[int, typer.Option(help="Events per run.")] = 200_000,
    threads: Annotated[int, typer.Option(help="Threads of the engine.")] = 2,
    shards: Annotated[
        list[int] | None,
        typer.Option(
            help="Shards in the study `shards`; repeat for several.", show_default="1, 2 and 4"
        ),
    ] = None,
    epoch_events: Annotated[int, typer.Option(help="Events per epoch.")] = 4096,
    operation_cost_us: Annotated[
        float, typer.Option(help="Busy time per operation, in microseconds.")
    ] = 8.0,
    recoveries: Annotated[
        int, typer.Option(help="Recoveries per configuration; the fastest counts.")
    ] = 2,
    runs: Annotated[int, typer.Option(help="Runs per configuration; the fastest counts.")] = 1,
    patience: Annotated[
        int, typer.Option(help="Repeat up to this many times as often while others use the cores.")
    ] = 3,
    keys: Annotated[int | None, typer.Option(help="Keys per table.")] = None,
    skew: Annotated[float | None, typer.Option(help="Zipf exponent of the keys.")] = None,
    multi_partition: Annotated[
        float | None, typer.Option(help="Share of transactions over partitions, 0 to 1.")
    ] = None,
    aborts: Annotated[float | None, typer.Option(help="Share of aborting events, 0 to 1.")] = None,
    length: Annotated[int | None, typer.Option(help="Keys per Grep and Sum event.")] = None,
    spare: Annotated[
        bool, typer.Option(help="Recover in a process that was started before the crash.")
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="Check every recovery against the sequential interpreter.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the generated events.")] = 7,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the facts here.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a page here.")] = None,
) -> None:
    """Compare how transactional state runs and recovers under each scheme.

    Every configuration feeds a workload to a process that is killed with SIGKILL in the
    middle of an epoch, and is recovered by another. Recovered state and outcomes are
    checked against a plain sequential interpreter, bit for bit.

    Example: everstream bench transactions --workload toll --scheme fast --scheme delta
    --events 100000 --html toll.html
    """
    from everstream_lab.bench.transactions import sharded, studies
    from everstream_lab.bench.transactions.figures import figures
    from everstream_lab.bench.transactions.measure import scratch

    if html_file is not None:
        from everstream_lab.bench.transactions.report import page
    console = Console()
    wanted = set(study or ([Study.SHARDS] if shards else [Study.COMPARE, Study.MODEL]))
    everything = Study.ALL in wanted
    with scratch(None) as folder, console.status("starting") as status:
        plan = studies.Plan(
            folder=folder,
            workloads=[str(name) for name in workload or WorkloadName],
            schemes=[str(name) for name in scheme or SchemeName],
            events=events,
            threads=threads,
            epoch_events=epoch_events,
            operation_cost_s=operation_cost_us * 1e-6,
            recoveries=recoveries,
            runs=runs,
            verify=verify,
            spare=spare,
            patience=patience,
            seed=seed,
            knobs={
                "keys": keys,
                "skew": skew,
                "multi_partition": multi_partition,
                "aborts": aborts,
                "length": length,
            },
        )
        results: dict[str, Any] = {"setting": _setting(plan)}
        if everything or Study.COMPARE in wanted:
            results["compare"] = studies.compare(plan, status.update)
        if everything or Study.FACTORS in wanted:
            results["factors"] = studies.factors(plan, status.update)
        if everything or Study.SCALABILITY in wanted:
            counts = sorted({1, threads})
            results["scalability"] = studies.scalability(plan, status.update, counts)
        if everything or Study.SENSITIVITY in wanted:
            results["sensitivity"] = studies.sensitivity(plan, status.update)
        if everything or Study.EPOCHS in wanted:
            results["epochs"] = studies.commit_epochs(
                plan, status.update, tuple(studies.CONTENTION), studies.EPOCH_SIZES
            )
        if everything or Study.SELECTIVE in wanted:
            results["selective"] = studies.selective_logging(plan, status.update, studies.SHARES)
        if everything or Study.SHARDS in wanted or shards:
            shares = sharded.SHARES if multi_partition is None else (multi_partition,)
            results["shards"] = sharded.shards(plan, shards or (1, 2, 4), shares, status.update)
        if everything or Study.MODEL in wanted:
            rows = results.get("compare", [])
            results["model"] = studies.makespans(plan, rows, status.update)
    promises = figures(results.get("compare", []), results.get("model", {}), plan.operation_cost_s)
    _show(console, results, promises)
    if html_file is not None:
        html_file.parent.mkdir(parents=True, exist_ok=True)
        html_file.write_text(page(results, promises))
        console.print(f"page written to {html_file}")
    if json_file is not None:
        _write_facts(json_file, results, promises)
        console.print(f"facts written to {json_file}")


def _setting(plan: Any) -> dict[str, Any]:
    return {
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "events per run": plan.events,
        "events per epoch": plan.epoch_events,
        "threads": plan.threads,
        "operation cost": f"{plan.operation_cost_s * 1e6:g} µs",
        "recovering process": "spare, started before the crash" if plan.spare else "fresh",
        "fastest of": f"{plan.runs} runs, {plan.recoveries} recoveries",
    }


def _show(console: Console, results: dict[str, Any], promises: list[Any]) -> None:
    if results.get("shards"):
        table = Table(title="shards")
        for column in ("shards", "over partitions", "over shards", "thousand/s", "busiest shard"):
            table.add_column(column, justify="right")
        for row in results["shards"]:
            table.add_row(
                str(row["shards"]),
                f"{row['multi_partition']:.0%}",
                f"{row['over_shards']:.0%}",
                f"{row['events_per_s'] / 1e3:.1f}",
                f"{row['busiest_share']:.0%}",
            )
        console.print(table)
    for name in ("compare", "factors", "scalability", "sensitivity", "epochs", "selective"):
        rows = results.get(name)
        if not rows:
            continue
        table = Table(title=name)
        for column in ("what", "scheme"):
            table.add_column(column)
        for column in ("threads", "thousand/s", "start s", "work s", "total s", "disturbed"):
            table.add_column(column, justify="right")
        for row in rows:
            what = _what(row)
            recovery = row.get("recovery", {})
            table.add_row(
                what + (f" {row['step']}" if "step" in row else ""),
                row["scheme"],
                str(row["threads"]),
                f"{row['throughput_per_s'] / 1e3:.1f}",
                f"{recovery.get('start_s', 0):.2f}",
                f"{recovery.get('work_s', 0):.3f}",
                f"{row.get('recovery_s', 0):.3f}",
                f"{max(row['disturbed'], recovery.get('disturbed', 0)):.0%}",
            )
        console.print(table)
    if promises:
        table = Table(title="promises")
        for column in ("figure", "wanted", "measured", "reached"):
            table.add_column(column)
        for promise in promises:
            verdict = "yes" if promise.reached else "[bold red]no[/]"
            table.add_row(promise.name, f"{promise.wanted:g}", f"{promise.measured:.2f}", verdict)
        console.print(table)


def _what(row: dict[str, Any]) -> str:
    """What a row of a study is about."""
    if "contention" in row:
        return f"{row['contention']}, {row['epoch_events']} events"
    if "logging" in row:
        return f"{row['logging']} logging, {row['value']:g} over partitions"
    return str(row.get("workload") or f"{row['knob']} = {row['value']:g}")


def _write_facts(json_file: Path, results: dict[str, Any], promises: list[Any]) -> None:
    plain = dict(results)
    plain["model"] = {
        name: [asdict(span) | {"gain": span.gain} for span in spans]
        for name, spans in results.get("model", {}).items()
    }
    plain["promises"] = [asdict(one) | {"reached": one.reached} for one in promises]
    write_json(json_file, plain)
