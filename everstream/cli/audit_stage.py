"""Where `everstream audit` runs a pipeline: supervised and shown like any other run."""

from dataclasses import dataclass, replace

from rich.console import Console
from rich.markup import escape

from everstream.audit.rescales import Rescales
from everstream.audit.trial import Trial, TrialResult
from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.supervise import Supervisor
from everstream.cli.say import FAILED, USAGE, say_error
from everstream.cli.views.messages import (
    DriverFailed,
    DriverFinished,
    EventReported,
    Fault,
    Message,
)
from everstream.cli.views.screen import make_screen
from everstream.cli.views.summary import show_recoveries
from everstream.core.orders import Phase
from everstream.engine.faults.kills import Kill
from everstream.events import Killing, PlanChanged, Progressed

RESTARTS = 3
"""How many failures that the audit did not cause a run survives; as in `everstream run`."""


@dataclass
class SupervisedStage:
    """Each run has a supervisor and a screen; a failure is reported at once."""

    command: RunCommand
    seed: int
    console: Console
    rescales: Rescales | None = None
    """Requests other numbers of shards at the start of each disturbed run, and with every kill."""
    failed_with: int | None = None
    """The exit code for the last failure; None if there was none."""

    def perform(self, trial: Trial) -> TrialResult:
        self._say(f"[bold]{trial.purpose}[/bold]")
        settings = self.command.with_settings(
            store=str(trial.store),
            kill=list(trial.kills),
            max_restarts=RESTARTS + trial.driver_kills,
        )
        command = replace(settings, rehearsal=trial.rehearsal)
        rescales = self.rescales if trial.rehearsal.gate is not None else None
        first = rescales is not None

        def show(message: Message) -> None:
            nonlocal first
            match message:
                case EventReported(event=Killing(kill=kill)):
                    trial.end_gate.on_kill(Kill.parse(kill))
                    if rescales is not None:
                        rescales.ask(trial.store)
                case EventReported(event=Progressed(status=status), at_s=at_s):
                    trial.end_gate.on_progress(status.phase, at_s)
                    if rescales is not None and first and status.phase is Phase.RUNNING:
                        first = False
                        rescales.ask(trial.store)
                case EventReported(event=PlanChanged(explained=False)) if rescales is not None:
                    rescales.happened += 1
            screen.show(message)

        supervisor = Supervisor(command, show)
        with make_screen(self.console) as screen:
            if self.console.is_terminal:
                supervisor.passing = screen.passing
            supervisor.run()
        show_recoveries(self.console, supervisor.log.recoveries)
        ending = _ending_of(supervisor, trial)
        if not ending.finished:
            self._tell_failure(trial, supervisor)
        return ending

    def drawn(self, rounds: list[list[str]]) -> None:
        self._say(f"kills drawn with seed {self.seed}, for {len(rounds)} disturbed run(s):")
        for number, kills in enumerate(rounds, 1):
            self._say(f"  {number}: {escape(', '.join(kills))}")

    def drawn_instead(self, missing: int, kills: list[str]) -> None:
        self._say(f"{missing} kill(s) did not happen; instead: {escape(', '.join(kills))}")

    def _tell_failure(self, trial: Trial, supervisor: Supervisor) -> None:
        """Report why the run failed; an interrupted run did not fail."""
        end = supervisor.log.end
        if isinstance(end, DriverFailed) and end.fault is not Fault.STOPPED:
            say_error(end.text)
            self.failed_with = USAGE if end.fault is Fault.USAGE else FAILED
        elif supervisor.timed_out and trial.rehearsal.gate is None:
            say_error(
                f"the undisturbed run did not end within --timeout {self.command.options.timeout}: an "
                "audit needs a pipeline whose sources end."
            )
            self.failed_with = USAGE
        elif supervisor.timed_out:
            say_error(f"{trial.name}: the run did not end within --timeout")
            self.failed_with = FAILED

    def _say(self, markup: str) -> None:
        self.console.print(markup, highlight=False, soft_wrap=True)


def _ending_of(supervisor: Supervisor, trial: Trial) -> TrialResult:
    end = supervisor.log.end
    finished = supervisor.outcome == "finished"
    return TrialResult(
        outcome=supervisor.outcome,
        timed_out=supervisor.timed_out,
        error=end.text if isinstance(end, DriverFailed) else None,
        counts=end.result["counts"] if finished and isinstance(end, DriverFinished) else {},
        outputs=trial.outputs() if finished else {},
        recoveries=supervisor.log.recoveries,
    )
