"""Our applications take less code than the published ones."""

import runpy
from pathlib import Path

import pytest

from everstream_lab.apps.catalogue import NAMES
from everstream_lab.apps.lookup import application_at
from everstream_lab.apps.productivity.measure import counted
from everstream_lab.apps.productivity.published import LINES
from everstream_lab.cli.apps_reports import RESIPIPE_GOAL, SPAR_GOAL, goal_of

ROOT = Path(__file__).parents[3]


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


@pytest.mark.parametrize("name", NAMES)
def test_annotated_code_takes_few_lines(name: str) -> None:
    found = {one.interface: one for one in counted(application_at(name))}
    ours = found["annotated"]
    assert "@es.annotated" in ours.program and ".run(" in ours.program
    assert "def pipeline(" not in ours.program and "def sequential(" not in ours.program
    compile(ours.program, name, "exec")
    if name in LINES["SPar"]:
        assert ours.measures.lines <= SPAR_GOAL * LINES["SPar"][name]


def test_the_program_that_is_counted_is_a_whole_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {one.interface: one for one in counted(application_at("prime"))}
    program = tmp_path / "counted.py"
    called_plainly = found["annotated"].program.replace(".run(limit=500_000)", "(100)")
    program.write_text(called_plainly.replace("@njit(cache=True)\n", ""))
    runpy.run_path(str(program))
    assert capsys.readouterr().out == "{'primes': 25}\n"


def test_the_table_in_the_documents_is_what_is_counted() -> None:
    rows = []
    for name in NAMES:
        lines = {one.interface: one.measures.lines for one in counted(application_at(name))}
        cells = [name]
        for interface, system in (("everstream", "ResiPipe"), ("annotated", "SPar")):
            theirs = LINES[system].get(name)
            share = "-" if theirs is None else f"{lines[interface] / theirs:.2f}"
            cells += [str(lines[interface]), str(theirs or "-"), share]
        rows.append(f"| {' | '.join(cells)} |")
    table = "\n".join(rows)
    assert table in (ROOT / "docs" / "explanation" / "benchmarks.md").read_text(), table


def test_a_goal_that_is_missed_is_said() -> None:
    assert goal_of("prime", "everstream", 37) == ("0.62 of ResiPipe's", False)
    assert goal_of("prime", "annotated", 20) == ("0.80 of SPar's", True)
    assert goal_of("lane", "everstream", 10) is None
