"""What is said of a run when it is over."""

import pytest
from rich.console import Console

from everstream.cli.views.summary import show_recoveries
from everstream.core.coordinators.recovery_report import RecoveryReport


@pytest.mark.parametrize("what", ["worker 2 (killed on purpose)", "worker 2 came back"])
def test_a_kill_on_purpose_is_said_once(what: str) -> None:
    console = Console(width=200)
    with console.capture() as said:
        show_recoveries(console, [RecoveryReport(what, ("a:0",), injected=True, detected_s=1.0)])
    assert said.get().count("killed on purpose") == 1
