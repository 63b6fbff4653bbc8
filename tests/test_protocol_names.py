"""One word for one thing: everybody takes the names of the protocols from the registry."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

import everstream as es
import everstream.cli.runs.command as run_command
from everstream.cli.app import app
from everstream.cli.runs.arguments import RunCommand
from everstream.core.registry import PROTOCOLS, name_of, named
from everstream.core.scheme import scheme_of
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Mode, Rule
from everstream.planning import advise
from everstream.planning.protocol_costs import built_in
from everstream.simulation.__main__ import app as simulator
from everstream.simulation.storm import scheme_for
from everstream_lab.bench.protocols.grid import Cell, cells
from everstream_lab.bench.protocols.measure import Measured

NAMES = list(PROTOCOLS)
LISTED = ", ".join(NAMES)
STRANGE = ["coordinated", "communication-induced", "memory", "induced", "cic", "Aligned", ""]
DOCUMENT = Path(__file__).parents[1] / "docs" / "explanation" / "protocols.md"
WIDE = {"COLUMNS": "400"}


def test_the_words_are_these() -> None:
    words = "aligned unaligned at-least-once uncoordinated hmnr bcs none"
    assert words.split() == NAMES
    assert set(NAMES) == {*get_args(Mode), "uncoordinated", *get_args(Rule), "none"}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_the_same_in_python_and_in_the_core(name: str) -> None:
    protocol = named(name)
    assert name_of(protocol.choice) == name
    assert eval(protocol.in_python, {"es": es}) == protocol.choice
    scheme = scheme_of(protocol.choice)
    assert scheme.name == name
    assert (scheme.log != "none") == protocol.logs
    assert (scheme.cycles, scheme.exactly_once) == (protocol.cycles, protocol.exactly_once)


@pytest.mark.parametrize("name", STRANGE)
def test_an_unknown_name_is_answered_with_the_registry(name: str) -> None:
    with pytest.raises(UserError, match=f"say one of {LISTED}"):
        named(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_run_command_takes_every_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunCommand] = []
    monkeypatch.setattr(run_command, "run_supervised", lambda command, *_: asked.append(command))
    said = CliRunner().invoke(app, ["run", "pipeline.py", "--checkpoint", name], env=WIDE)
    assert said.exit_code == 0, said.output
    assert asked[0].options.checkpoint == named(name).choice
    assert said.stdout == ""


def test_the_run_command_lists_every_name() -> None:
    text = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "2000"}).output
    assert f"Checkpoint protocol: {', '.join(PROTOCOLS)}." in text


@pytest.mark.parametrize("name", STRANGE)
def test_the_run_command_takes_no_other_name(name: str) -> None:
    said = CliRunner().invoke(app, ["run", "pipeline.py", "--checkpoint", name], env=WIDE)
    assert said.exit_code == 2
    assert LISTED in said.output


@pytest.mark.parametrize("name", NAMES)
def test_the_simulator_takes_every_name(name: str) -> None:
    assert scheme_for(name, seed=1).name == name
    said = CliRunner().invoke(simulator, ["1", "--protocol", name, "--no-faults"], env=WIDE)
    assert said.exit_code == 0, said.output


@pytest.mark.parametrize("name", STRANGE)
def test_the_simulator_takes_no_other_name(name: str) -> None:
    said = CliRunner().invoke(simulator, ["1", "--protocol", name], env=WIDE)
    assert said.exit_code == 2
    assert LISTED in said.output


def test_the_benchmark_takes_every_name(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    grid = cells(["nexmark-2-half"], NAMES, [1.0], [False], 1, microbatch=True)
    file.write_text(json.dumps({"runs": [measured(cell).to_json() for cell in grid]}))
    named_all = [word for name in NAMES for word in ("--protocol", name)]
    said = CliRunner().invoke(
        app,
        [
            *("bench", "protocols", "--query", "nexmark-2-half", "--interval", "1s", *named_all),
            *("--failure", "none", "--repeats", "1", "--no-costs", "--no-memory"),
            *("--json", str(file), "--html", str(tmp_path / "page.html")),
        ],
        env=WIDE,
    )
    assert said.exit_code == 0, said.output
    rows = {tuple(line.split()[:2]) for line in said.output.splitlines()}
    assert {("nexmark-2-half", name) for name in NAMES} <= rows


def measured(cell: Cell) -> Measured:
    return Measured(cell, 1e4, 5e3, 30.0, 60.0, 90.0, 9.0, 20, 0, 10_000, 0, 5.0, 0, 0, 0, 0)


@pytest.mark.parametrize("name", STRANGE)
def test_the_benchmark_takes_no_other_name(name: str) -> None:
    said = CliRunner().invoke(app, ["bench", "protocols", "--protocol", name])
    assert isinstance(said.exception, UserError) and LISTED in str(said.exception)


def test_the_adviser_weighs_exactly_these() -> None:
    advice = advise(state_size="1GB", rate=1000)
    assert [option.protocol for option in advice.options] == NAMES
    costs = built_in()
    for figures in (costs.went_back, costs.stands_still_s, costs.log_s_per_byte, costs.forced):
        assert set(figures) <= set(NAMES)


def test_the_document_has_a_row_for_each_that_says_what_the_registry_says() -> None:
    table = re.findall(
        r"^\| `(.+?)` \| `(.+?)` \| (.+?) \| (.+?) \| (.+?) \|$", DOCUMENT.read_text(), re.M
    )
    assert [word for _, word, *_ in table] == NAMES
    for python, word, failure, cycles, results in table:
        protocol = named(word)
        assert python == protocol.in_python
        assert failure.startswith("some shards roll back") == protocol.logs
        assert cycles.startswith("yes") == protocol.cycles
        assert (results == "exactly-once") == protocol.exactly_once
