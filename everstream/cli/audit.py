"""`everstream audit`: random kills in a user's own pipeline, and a comparison of what comes out.

The pipeline runs once undisturbed. Then it runs again, as often as it takes, with a few kills each
time. Every run has the same supervisor and screen as `everstream run`, a store of its own in a
temporary folder, and `Collect` in place of each of the pipeline's sinks, or the sink itself with a
place of its own.
"""

import json
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from everstream.cli.runs.command import Arguments, StoreKeyFile, Target
from everstream.cli.runs.flags import flag, settings_for
from everstream.errors import EverstreamError

if TYPE_CHECKING:
    from everstream.audit.audit_plan import Findings
    from everstream.audit.comparison import Difference
    from everstream.audit.rescales import Rescales
    from everstream.cli.audit_stage import SupervisedStage
    from everstream.pipeline.stream import Pipeline
    from everstream.state.signing import StoreKey

console = Console()
NONDETERMINISM = (
    "What could make it differ without any failure: operators that look at whole batches "
    "(map_batches, process_batch), clocks, random numbers, sums of floats, or the order in which "
    "records of several shards meet."
)


def audit(
    target: Target,
    arguments: Arguments = None,
    engine: Annotated[str | None, flag("engine")] = None,
    kills: Annotated[int, typer.Option(min=1, help="How many processes to kill.")] = 20,
    seed: Annotated[int, typer.Option(help="The same seed draws the same kills.")] = 7,
    drivers: Annotated[
        bool, typer.Option("--drivers", help="Kill the driver now and then, too.")
    ] = False,
    every: Annotated[str, flag("every", default="200ms")] = "200ms",
    master: Annotated[
        str,
        flag(
            "master",
            "Spark master on this machine: local[4], local-cluster[2,2,1024].",
            "local[4]",
        ),
    ] = "local[4]",
    workers: Annotated[str | None, flag("workers")] = None,
    timeout: Annotated[str, flag("timeout", "Give up if one run takes longer.", "10m")] = "10m",
    rescale: Annotated[
        bool,
        typer.Option("--rescale", help="Change numbers of shards among the kills."),
    ] = False,
    real_sinks: Annotated[
        bool,
        typer.Option(
            "--real-sinks",
            help="Use the sinks that can write to a place of their own beside yours (Kafka: a "
            "topic), which is removed at the end.",
        ),
    ] = False,
    store_key: StoreKeyFile = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result here.")
    ] = None,
) -> None:
    """Kill your own pipeline at random, and see whether a record is lost or doubled.

    Runs a bounded pipeline once undisturbed, then again with random kills at random points, and
    compares the outputs. Your sinks are NOT used: each is replaced by one that collects in a
    temporary folder, so no folder or system they point to is touched, nor are they themselves put
    to the test. Sources and operators are real, and an operator that acts on the outside does so.
    With --rescale operators get other numbers of shards in the same runs.
    With --real-sinks those that can are put to the test as well: Kafka, with topics of their own,
    named after yours, which are removed at the end.

    In disturbed runs sources give their batches slowly and do not end before the kills have
    happened. A few kills go to each run; kills that never came to pass are drawn anew for further
    runs, and how many happened is said in the end.

    Example: everstream audit examples/word_count.py --kills 20 --seed 7

    Exit codes: 0 nothing lost, nothing duplicated; 1 something was, or a run failed, or not one
    kill happened; 2 wrong usage; 130 interrupted.
    """
    from everstream.audit.audit_plan import Audit
    from everstream.cli.audit_stage import SupervisedStage
    from everstream.cli.runs.arguments import RunCommand
    from everstream.cli.runs.command import say_error
    from everstream.cli.runs.finding import load_pipeline
    from everstream.cli.runs.supervise import FAILED, USAGE
    from everstream.errors import UserError
    from everstream.state.signing import StoreKey

    called_with = tuple(arguments or ())
    of_the_program = {"engine": engine, "workers": workers, "store_key": store_key}
    of_the_audit = {"master": master, "every": every, "timeout": timeout}
    try:
        settings = settings_for(target, of_the_program | of_the_audit, of_the_program)
        command = RunCommand(target, settings, arguments=called_with)
        command.check()
        performed_by = command.options.engine
        key = StoreKey.given(command.options.store_key)
        if not master.startswith("local"):
            raise UserError(f"--master {master}: an audit runs on this machine; say local[4].")
        with tempfile.TemporaryDirectory(prefix="everstream-audit-") as folder:
            pipeline = load_pipeline(target, called_with)
            rescales = _rescales(pipeline, seed, performed_by, key, rescale)
            stage = SupervisedStage(command, seed, console, rescales)
            audit_copy = _label(pipeline) if real_sinks else None
            findings = Audit(
                pipeline, stage, Path(folder), kills, seed, drivers, performed_by, audit_copy, key
            ).run()
        code = conclude(findings, stage)
        if json_file is not None and findings.disturbed and not findings.interrupted:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            told = {**findings.to_json(), "exit_code": code}
            if rescales is not None:
                told |= {"rescales_asked": rescales.asked, "rescales_happened": rescales.happened}
            json_file.write_text(json.dumps(told, indent=2) + "\n")
    except UserError as error:
        say_error(error.message)
        code = USAGE
    except EverstreamError as error:
        say_error(str(error))
        code = FAILED
    raise typer.Exit(code)


def _rescales(
    pipeline: "Pipeline", seed: int, engine: str, key: "StoreKey | None", wanted: bool
) -> "Rescales | None":
    from everstream.audit.rescales import Rescales
    from everstream.core.plan import make_plan
    from everstream.errors import UserError

    if not wanted:
        return None
    if engine == "microbatch":
        raise UserError(
            "--rescale: with --engine microbatch shards are changed between two runs only."
        )
    return Rescales(make_plan(pipeline, 1), seed, key)


def _label(pipeline: "Pipeline") -> str:
    """For what real sinks write to audit copies; says which are put to the test."""
    from everstream.audit.rehearsal import real_sinks
    from everstream.errors import UserError
    from everstream.pipeline.graph import Kind

    every = [node.name for node in pipeline.graph.of_kind(Kind.SINK)]
    real = real_sinks(pipeline.graph)
    if not real:
        raise UserError(
            f"--real-sinks: none of the sinks ({', '.join(every)}) can write to a place of its own; "
            "Kafka can. Leave the option out, and they are replaced."
        )
    _say(f"put to the test with places of their own: {escape(', '.join(real))}")
    if replaced := [name for name in every if name not in real]:
        _say(f"replaced: {escape(', '.join(replaced))}")
    return uuid.uuid4().hex[:8]


def conclude(findings: "Findings", stage: "SupervisedStage") -> int:
    """Say what was found; the exit code."""
    from everstream.cli.runs.supervise import FAILED, KILLED, OK

    if not findings.undisturbed.finished:
        return KILLED if stage.failed_with is None else stage.failed_with
    if findings.interrupted:
        _say("interrupted: no verdict")
        return KILLED
    _show_differences(findings)
    _show_verdict(findings, stage.rescales)
    return OK if findings.passed else FAILED


def _show_differences(findings: "Findings") -> None:
    for disturbed in findings.disturbed:
        for difference in disturbed.differences:
            if not difference.verdict.exact:
                _show_difference(disturbed.trial.name, difference)
    if findings.again is None:
        return
    if any(not difference.verdict.exact for difference in findings.again):
        _say(
            "[yellow]An undisturbed run differs from the first one as well: this output "
            "depends on timing or batches, and the audit cannot tell what the kills did.[/yellow]"
        )
    else:
        _say("A second undisturbed run gave what the first one gave.")
    _say(NONDETERMINISM)


def _show_difference(run: str, difference: "Difference") -> None:
    verdict = difference.verdict
    _say(
        f"{run}, sink '{escape(difference.sink)}': lost {verdict.lost:,}, duplicated "
        f"{verdict.duplicated:,} of {verdict.expected:,}"
    )
    for sample in difference.missing:
        _say(f"  missing: {escape(sample)}")
    for sample in difference.surplus:
        _say(f"  too many: {escape(sample)}")


def _show_verdict(findings: "Findings", rescales: "Rescales | None") -> None:
    compared = sum(1 for disturbed in findings.disturbed if disturbed.ending.finished)
    records = sum(findings.expected.values())
    colour = "green" if findings.passed else "red"
    verdict = f"lost {findings.lost:,}, duplicated {findings.duplicated:,}"
    if findings.failed:
        verdict = f"a disturbed run failed; {verdict} in those that did not"
    _say(
        f"[bold {colour}]{verdict}: {records:,} records expected from each of {compared} "
        f"disturbed run(s)[/bold {colour}]"
    )
    few = "" if findings.happened >= findings.kills else ": the pipeline never came to the others"
    if not findings.happened:
        few = ": nothing was put to the test; try another --seed"
    _say(f"{findings.happened} of {findings.kills} kills happened{few}")
    if rescales is not None:
        _say(f"shards were changed {rescales.happened} time(s), asked for {rescales.asked} time(s)")


def _say(markup: str) -> None:
    console.print(markup, highlight=False, soft_wrap=True)
