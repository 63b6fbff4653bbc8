"""`everstream demo`: a stateful pipeline, a process killed mid-stream, and proof of exact output."""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from everstream.cli.runs.flags import flag
from everstream.cli.say import FAILED, KILLED, OK, USAGE, console, say, say_error
from everstream.errors import EverstreamError, MissingExtra

EVERY = "1s"
OPERATOR, SHARD = "balance", 1
SINK = "ledger"


def register(app: typer.Typer) -> None:
    """Add the command to the `everstream` app."""
    app.command("demo")(demo)


def demo(
    seconds: Annotated[int, typer.Option(min=4, help="Duration of the load in seconds.")] = 20,
    rate: Annotated[int, typer.Option(min=100, help="Payments per second.")] = 20_000,
    report: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the report.")] = Path(
        "reports/demo"
    ),
    master: Annotated[str, flag("master", default="local[3]")] = "local[3]",
) -> None:
    """Kill a process of a running pipeline and check that no record is lost or duplicated.

    Writes a report with a picture of the recovery. Takes about a minute.

    Example: everstream demo --seconds 30 --rate 50000

    Exit codes: 0 the output is exact; 1 it is not, or the run failed; 2 matplotlib is missing;
    130 interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="everstream-demo-") as folder:
        try:
            code = _Demo(seconds * rate, rate, report, master, Path(folder)).run()
        except EverstreamError as error:
            say_error(str(error))
            code = USAGE if isinstance(error, MissingExtra) else FAILED
    raise typer.Exit(code)


class _Demo:
    def __init__(self, total: int, rate: int, report: Path, master: str, folder: Path) -> None:
        self.total, self.rate = total, rate
        self.report, self.master, self.folder = report, master, folder
        self.kill_s = max(2.5, total / rate / 2)

    def run(self) -> int:
        from everstream.audit.comparison import judge
        from everstream.cli.views.messages import EventReported, Message, Teller
        from everstream.cli.views.screen import make_screen
        from everstream.cli.views.summary import show_summary
        from everstream.core.orders import Outcome
        from everstream.demo.accounts import accounts_pipeline, entries, plain_program
        from everstream.demo.timeline import Sample
        from everstream.events import Progressed
        from everstream.pipeline.checkpointing import Coordinated

        samples: list[Sample] = []

        def watch(message: Message) -> None:
            match message:
                case EventReported(event=Progressed(status=status), at_s=at_s):
                    samples.append(Sample(at_s, status.totals.get(OPERATOR, 0)))
            screen.show(message)

        say(
            f"{self.total:,} payments at {self.rate:,} per second, the balance of each account "
            f"after each of them, checkpoints every {EVERY}. After {self.kill_s:g} s the process "
            f"of {OPERATOR}:{SHARD} is killed with SIGKILL."
        )
        output = self.folder / "ledger"
        pipeline = accounts_pipeline(self.total, self.rate, output)
        with make_screen(console) as screen:
            result = pipeline.run(
                checkpoint=Coordinated(every=EVERY),
                store=self.folder / "store",
                master=self.master,
                kill=[f"{OPERATOR}:{SHARD}@{self.kill_s:g}s"],
                listener=Teller(watch),
            )
        if result.outcome is not Outcome.FINISHED:
            say("stopped early: no verdict")
            return KILLED
        facts = result.to_json()
        show_summary(console, facts, facts["checkpoints"], result.recoveries)
        with console.status("comparing with a plain program"):
            verdict = judge(plain_program(self.total), entries(output))
        page = self._write_report(facts, verdict, result.recoveries, samples)
        colour = "green" if verdict.exact else "red"
        console.print(f"[bold {colour}]{describe(verdict)}[/bold {colour}]", highlight=False)
        say(f"report: {page}")
        if not result.recoveries:
            say("nothing was killed: the load ended too soon; use more --seconds")
            return FAILED
        return OK if verdict.exact else FAILED

    def _write_report(
        self, facts: dict[str, Any], verdict: Any, recoveries: list[Any], samples: list[Any]
    ) -> Path:
        from everstream.cli.views.summary import STEPS, describe_checkpoints
        from everstream.demo.timeline import HtmlReport, draw_recovery

        self.report.mkdir(parents=True, exist_ok=True)
        page = HtmlReport("A process was killed, and nothing was lost")
        if not verdict.exact:
            page.title = "A process was killed, and the output is wrong"
        page.verdict(describe(verdict), verdict.exact)
        page.text(
            f"{self.total:,} payments at {self.rate:,} per second went through a pipeline that "
            "keeps the balance of each account and writes it after each payment. Mid-stream, "
            f"the process of one shard ({OPERATOR}:{SHARD}) was killed with SIGKILL. Every record "
            "of the output was then compared with that of a plain sequential program."
        )
        if recoveries:
            picture = self.report / "recovery.png"
            title = f"{OPERATOR} at {self.rate:,} records/s: one of its processes is killed"
            draw_recovery(samples, recoveries[0], self.rate, picture, title)
            page.heading("The recovery")
            page.picture(picture, "Records done over time around the kill")
            rows = [
                [
                    report.what,
                    *(
                        "-" if ms is None else f"{ms:,.0f} ms"
                        for ms in report.milliseconds().values()
                    ),
                    f"{report.records_replayed:,}",
                    f"{report.duplicates_suppressed:,}",
                ]
                for report in recoveries
            ]
            page.table(("failure", *STEPS, "records replayed", "duplicates suppressed"), rows)
        page.heading("The run")
        counts = [[n, f"{i:,}", f"{o:,}"] for n, (i, o) in facts["counts"].items()]
        page.table(("operator", "records in", "records out"), counts)
        page.text(describe_checkpoints(facts["checkpoints"]))
        page.write(self.report / "index.html")
        zero_s = samples[0].at_s if samples else 0.0
        summary = {
            "verdict": verdict.to_json(),
            "rate_per_s": self.rate,
            "kill_s": self.kill_s,
            "run": facts,
            "samples": [[round(s.at_s - zero_s, 3), s.records] for s in samples],
        }
        (self.report / "demo.json").write_text(json.dumps(summary, indent=1) + "\n")
        return self.report / "index.html"


def describe(verdict: Any) -> str:
    return (
        f"lost {verdict.lost:,}, duplicated {verdict.duplicated:,}: "
        f"{verdict.found:,} records, {verdict.expected:,} expected"
    )
