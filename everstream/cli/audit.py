"""`everstream audit`: random kills in a user's own pipeline, and a comparison of what comes out.

The pipeline runs once undisturbed. Then it runs again, as often as it takes, with a few kills each
time. Every run has the same supervisor and screen as `everstream run`, a store of its own in a
temporary folder, and `Collect` in place of each of the pipeline's sinks.
"""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from everstream.errors import EverstreamError

if TYPE_CHECKING:
    from everstream.bench.audit import Difference
    from everstream.cli.audit_run import AuditRun
    from everstream.cli.options import RunOptions

console = Console()
MAX_EXTRA_ROUNDS = 3
"""Further runs for kills that did not happen in theirs."""
NONDETERMINISM = (
    "What could make it differ without any failure: operators that look at whole batches "
    "(map_batches, process_batch), clocks, random numbers, sums of floats, or the order in which "
    "records of several shards meet."
)


def audit(
    target: Annotated[
        str, typer.Argument(metavar="PIPELINE", help="FILE.py, FILE.py:NAME or module:NAME")
    ],
    kills: Annotated[int, typer.Option(min=1, help="How many processes to kill.")] = 20,
    seed: Annotated[int, typer.Option(help="The same seed draws the same kills.")] = 7,
    drivers: Annotated[
        bool, typer.Option("--drivers", help="Kill the driver now and then, too.")
    ] = False,
    every: Annotated[
        str, typer.Option(metavar="200ms", help="Time between checkpoints.")
    ] = "200ms",
    master: Annotated[
        str, typer.Option(help="Spark master on this machine: local[4], local-cluster[2,2,1024].")
    ] = "local[4]",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Hosts to spread the shards over; default: all.")
    ] = None,
    timeout: Annotated[
        str, typer.Option(metavar="10m", help="Give up if one run takes longer.")
    ] = "10m",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result here.")
    ] = None,
) -> None:
    """Kill your own pipeline at random, and see whether a record is lost or doubled.

    Runs a bounded pipeline once undisturbed, then again with random kills at random points, and
    compares the outputs. Your sinks are NOT used: each is replaced by one that collects in a
    temporary folder, so no folder or system they point to is touched, nor are they themselves put
    to the test. Sources and operators are real, and an operator that acts on the outside does so.

    In disturbed runs sources give their batches slowly and do not end before the kills have
    happened. A few kills go to each run; kills that never came to pass are drawn anew for further
    runs, and how many happened is said in the end.

    Example: everstream audit examples/word_count.py --kills 20 --seed 7

    Exit codes: 0 nothing lost, nothing duplicated; 1 something was, or a run failed, or not one
    kill happened; 2 wrong usage; 130 interrupted.
    """
    from everstream.cli.options import RunOptions
    from everstream.cli.run import say_error
    from everstream.cli.supervise import FAILED, USAGE
    from everstream.errors import UserError

    options = RunOptions(target, master, workers, every=every, timeout=timeout)
    try:
        options.check()
        if not master.startswith("local"):
            raise UserError(f"--master {master}: an audit runs on this machine; say local[4].")
        with tempfile.TemporaryDirectory(prefix="everstream-audit-") as folder:
            code = Audit(options, Path(folder), kills, seed, drivers, json_file).run()
    except UserError as error:
        say_error(error.message)
        code = USAGE
    except EverstreamError as error:
        say_error(str(error))
        code = FAILED
    raise typer.Exit(code)


class Audit:
    """One audit, from loading the pipeline to the verdict."""

    def __init__(
        self,
        options: "RunOptions",
        folder: Path,
        kills: int,
        seed: int,
        drivers: bool,
        json_file: Path | None,
    ) -> None:
        from everstream.bench.rehearsal import Rehearsal, rehearsed
        from everstream.cli.load import load_pipeline
        from everstream.core.plan import make_plan

        self.options, self.folder, self.json_file = options, folder, json_file
        self.kills, self.seed, self.drivers = kills, seed, drivers
        self.pipeline = rehearsed(load_pipeline(options.target), Rehearsal())
        self.plan = make_plan(self.pipeline, 1)
        self.runs: list[AuditRun] = []
        """The disturbed runs."""
        self.drawn: list[list[str]] = []
        self.again: list[Difference] | None = None

    def run(self) -> int:
        from everstream.bench.kill_plan import KillPlan, targets_of
        from everstream.cli.audit_run import AuditRun
        from everstream.cli.run import say_error
        from everstream.cli.supervise import FAILED, KILLED, OK, TIMED_OUT, USAGE

        self._say("[bold]undisturbed[/bold]")
        self.undisturbed = AuditRun(self, "undisturbed", [])
        code = self.undisturbed.run(console)
        if code == TIMED_OUT:
            say_error(
                f"the undisturbed run did not end within --timeout {self.options.timeout}: an "
                "audit needs a pipeline whose sources end."
            )
            return USAGE
        if not self.undisturbed.finished:
            return self.undisturbed.tell_failure() or KILLED
        plan = KillPlan(targets_of(self.plan, self.undisturbed.counts, self.drivers), self.seed)
        rounds = plan.rounds(self.kills)
        self._say(f"kills drawn with seed {self.seed}, for {len(rounds)} disturbed run(s):")
        for number, drawn in enumerate(rounds, 1):
            self._say(f"  {number}: {escape(', '.join(drawn))}")
        last = len(rounds) + MAX_EXTRA_ROUNDS
        for number in range(1, last + 1):
            if number > len(rounds):
                missing = self.kills - self.happened
                if not missing or not self.runs[-1].delivered:
                    break
                rounds.append(plan.round(min(missing, len(rounds[0]))))
                self._say(
                    f"{missing} kill(s) did not happen; instead: {escape(', '.join(rounds[-1]))}"
                )
            self._say(f"[bold]disturbed, run {number}[/bold]")
            self.drawn.append(rounds[number - 1])
            disturbed = AuditRun(self, f"disturbed-{number}", rounds[number - 1])
            self.runs.append(disturbed)
            disturbed.run(console)
            if disturbed.interrupted:
                self._say("interrupted: no verdict")
                return KILLED
            if not disturbed.finished:
                disturbed.tell_failure()
                break
            disturbed.compare_with(self.undisturbed)
        failed = any(not disturbed.finished for disturbed in self.runs)
        if not self.exact:
            self._run_undisturbed_again()
        self._conclude(failed)
        code = OK if self.exact and self.happened and not failed else FAILED
        if self.json_file is not None:
            self.json_file.parent.mkdir(parents=True, exist_ok=True)
            self.json_file.write_text(json.dumps(self._to_json(code), indent=2) + "\n")
        return code

    @property
    def happened(self) -> int:
        return sum(len(disturbed.delivered) for disturbed in self.runs)

    @property
    def lost(self) -> int:
        return sum(d.verdict.lost for run in self.runs for d in run.differences)

    @property
    def duplicated(self) -> int:
        return sum(d.verdict.duplicated for run in self.runs for d in run.differences)

    @property
    def exact(self) -> bool:
        return self.lost == 0 and self.duplicated == 0

    def _run_undisturbed_again(self) -> None:
        """Was it the kills? Slowed in the same way but not killed, the pipeline may differ, too."""
        from everstream.cli.audit_run import AuditRun

        self._say(
            "[bold]the outputs differ: once more undisturbed, to see whether that differs[/bold]"
        )
        again = AuditRun(self, "again", [], slowed=True)
        again.run(console)
        if again.finished:
            again.compare_with(self.undisturbed)
            self.again = again.differences

    def _conclude(self, failed: bool) -> None:
        for disturbed in self.runs:
            for difference in disturbed.differences:
                if not difference.verdict.exact:
                    self._show_difference(disturbed.name, difference)
        if self.again is not None:
            if any(not difference.verdict.exact for difference in self.again):
                self._say(
                    "[yellow]An undisturbed run differs from the first one as well: this output "
                    "depends on timing or batches, and the audit cannot tell what the kills did.[/yellow]"
                )
            else:
                self._say("A second undisturbed run gave what the first one gave.")
            self._say(NONDETERMINISM)
        compared = sum(1 for disturbed in self.runs if disturbed.finished)
        records = sum(len(found) for found in self.undisturbed.outputs.values())
        colour = "green" if self.exact and self.happened and not failed else "red"
        verdict = f"lost {self.lost:,}, duplicated {self.duplicated:,}"
        if failed:
            verdict = f"a disturbed run failed; {verdict} in those that did not"
        self._say(
            f"[bold {colour}]{verdict}: {records:,} records expected from each of {compared} "
            f"disturbed run(s)[/bold {colour}]"
        )
        few = "" if self.happened >= self.kills else ": the pipeline never came to the others"
        if not self.happened:
            few = ": nothing was put to the test; try another --seed"
        self._say(f"{self.happened} of {self.kills} kills happened{few}")

    def _show_difference(self, run: str, difference: "Difference") -> None:
        verdict = difference.verdict
        self._say(
            f"{run}, sink '{escape(difference.sink)}': lost {verdict.lost:,}, duplicated "
            f"{verdict.duplicated:,} of {verdict.expected:,}"
        )
        for sample in difference.missing:
            self._say(f"  missing: {escape(sample)}")
        for sample in difference.surplus:
            self._say(f"  too many: {escape(sample)}")

    def _to_json(self, code: int) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline.name,
            "seed": self.seed,
            "kills_asked": self.kills,
            "kills_happened": self.happened,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "exact": self.exact,
            "exit_code": code,
            "plan": self.drawn,
            "expected": {sink: len(found) for sink, found in self.undisturbed.outputs.items()},
            "runs": [disturbed.to_json() for disturbed in self.runs],
            "undisturbed_again": None
            if self.again is None
            else [difference.to_json() for difference in self.again],
        }

    def _say(self, markup: str) -> None:
        console.print(markup, highlight=False, soft_wrap=True)
