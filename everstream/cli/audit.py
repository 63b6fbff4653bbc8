"""`everstream audit`: kill processes of a user's pipeline at random and compare the outputs.

Every run has the supervisor and screen of `everstream run` and a separate store in a temporary folder.
"""

import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from everstream.cli.options import option, write_json
from everstream.cli.runs.command import Arguments, StoreKeyFile, Target
from everstream.cli.runs.flags import flag, settings_for
from everstream.cli.say import FAILED, KILLED, OK, USAGE, console, say_error
from everstream.errors import EverstreamError, UserError

if TYPE_CHECKING:
    from everstream.audit.audit_plan import Findings
    from everstream.audit.comparison import Difference
    from everstream.audit.rescales import Rescales
    from everstream.cli.audit_stage import SupervisedStage
    from everstream.pipeline.stream import Pipeline
    from everstream.state.signing import StoreKey

NONDETERMINISM = (
    "Outputs can differ without any failure because of operators that look at whole batches "
    "(map_batches, process_batch), clocks, random numbers, sums of floats, or the order in which "
    "records of several shards meet."
)


def register(app: typer.Typer) -> None:
    """Add the command to the `everstream` app."""
    app.command("audit")(audit)


def audit(
    target: Target,
    arguments: Arguments = None,
    kills: Annotated[int, option("Number of kills.", min=1)] = 20,
    seed: Annotated[int, option("The same seed draws the same kills.")] = 7,
    drivers: Annotated[
        bool, option("Kill the driver as well.", panel="Faults", name="--drivers")
    ] = False,
    every: Annotated[str, flag("every", default="200ms")] = "200ms",
    master: Annotated[
        str, flag("master", "Spark master on this machine.", "local[4]")
    ] = "local[4]",
    workers: Annotated[str | None, flag("workers")] = None,
    timeout: Annotated[str, flag("timeout", "Give up if one run takes longer.", "10m")] = "10m",
    rescale: Annotated[
        bool, option("Change numbers of shards between kills.", panel="Faults", name="--rescale")
    ] = False,
    real_sinks: Annotated[
        bool,
        option("Audit Kafka sinks too, on temporary topics.", panel="Faults", name="--real-sinks"),
    ] = False,
    engine: Annotated[str | None, flag("engine")] = None,
    store_key: StoreKeyFile = None,
    json_file: Annotated[
        Path | None, option("Write the result to this file.", "FILE", name="--json")
    ] = None,
) -> None:
    """Kill processes of your pipeline at random and check that no record is lost or duplicated.

    Runs a bounded pipeline once undisturbed, then again with kills at random points, and compares
    the outputs. Your sinks are NOT used: each is replaced by one that collects in a temporary
    folder, so nothing that they write to is touched, and they are not tested. Sources and operators
    are real: an operator with side effects has them in every run. With --real-sinks, Kafka sinks
    are tested as well, on topics named after yours that are removed at the end.

    In disturbed runs sources emit slowly and do not end before the kills have happened. Each run
    gets a few kills. Kills that did not happen are drawn again for further runs, and the result
    states how many happened.

    Example: everstream audit examples/word_count.py --kills 20 --seed 7

    Exit codes: 0 nothing lost, nothing duplicated; 1 records lost or duplicated, a run failed, or no
    kill happened; 2 wrong usage; 130 interrupted.
    """
    from everstream.audit.audit_plan import Audit
    from everstream.cli.audit_stage import SupervisedStage
    from everstream.cli.runs.arguments import RunCommand
    from everstream.cli.runs.finding import load_pipeline
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
            report = {**findings.to_json(), "exit_code": code}
            if rescales is not None:
                report |= {"rescales_asked": rescales.asked, "rescales_happened": rescales.happened}
            write_json(json_file, report)
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

    if not wanted:
        return None
    if engine == "microbatch":
        raise UserError(
            "--rescale: with --engine microbatch shards are changed between two runs only."
        )
    return Rescales(make_plan(pipeline, 1), seed, key)


def _label(pipeline: "Pipeline") -> str:
    """A label for the copies that real sinks write to; prints which sinks are tested."""
    from everstream.audit.rehearsal import real_sinks
    from everstream.pipeline.graph import Kind

    every = [node.name for node in pipeline.graph.of_kind(Kind.SINK)]
    real = real_sinks(pipeline.graph)
    if not real:
        raise UserError(
            f"--real-sinks: none of the sinks ({', '.join(every)}) can write to a separate place; "
            "Kafka can. Leave the option out to replace them."
        )
    _say(f"tested in separate places: {escape(', '.join(real))}")
    if replaced := [name for name in every if name not in real]:
        _say(f"replaced: {escape(', '.join(replaced))}")
    return uuid.uuid4().hex[:8]


def conclude(findings: "Findings", stage: "SupervisedStage") -> int:
    """Print the findings; returns the exit code."""
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
        _say("A second undisturbed run gave the same output as the first.")
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
        _say(f"  surplus: {escape(sample)}")


def _show_verdict(findings: "Findings", rescales: "Rescales | None") -> None:
    compared = sum(1 for disturbed in findings.disturbed if disturbed.ending.finished)
    records = sum(findings.expected.values())
    colour = "green" if findings.passed else "red"
    verdict = f"lost {findings.lost:,}, duplicated {findings.duplicated:,}"
    if findings.failed:
        verdict = f"a disturbed run failed; {verdict} in the others"
    _say(
        f"[bold {colour}]{verdict}: {records:,} records expected from each of {compared} "
        f"disturbed run(s)[/bold {colour}]"
    )
    few = "" if findings.happened >= findings.kills else ": the pipeline never reached the others"
    if not findings.happened:
        few = ": nothing was tested; try another --seed"
    _say(f"{findings.happened} of {findings.kills} kills happened{few}")
    if rescales is not None:
        _say(f"shards changed {rescales.happened} time(s), requested {rescales.asked} time(s)")


def _say(markup: str) -> None:
    console.print(markup, highlight=False, soft_wrap=True)
