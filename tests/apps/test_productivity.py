"""Our applications take less code than the published ones."""

import pytest

from everstream.apps.catalogue import NAMES
from everstream.apps.lookup import application_at
from everstream.apps.productivity.measure import counted
from everstream.apps.productivity.published import LINES
from everstream.cli.apps_reports import RESIPIPE_GOAL, goal_of


@pytest.mark.parametrize("name", NAMES)
def test_a_program_on_everstream_takes_few_lines(name: str) -> None:
    found = {one.interface: one for one in counted(application_at(name))}
    assert {"sequential", "threads", "processes", "everstream", "pyspark"} <= found.keys()
    ours = found["everstream"]
    assert "def pipeline(" in ours.program and "def sequential(" not in ours.program
    assert "def make_input(" not in ours.program and "APPLICATION" not in ours.program
    compile(ours.program, name, "exec")
    if name in LINES["ResiPipe"]:
        assert ours.measures.lines <= RESIPIPE_GOAL * LINES["ResiPipe"][name]


def test_a_goal_that_is_missed_is_said() -> None:
    assert goal_of("prime", "everstream", 37) == ("0.62 of ResiPipe's", False)
    assert goal_of("prime", "annotated", 20) == ("0.80 of SPar's", True)
    assert goal_of("lane", "everstream", 10) is None
