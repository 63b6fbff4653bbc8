"""`everstream advise`: an answer before anything runs."""

import json
from pathlib import Path

from typer.testing import CliRunner

from everstream.cli.app import app


def test_advise_prints_the_answer_and_refuses_nonsense_kindly(tmp_path: Path) -> None:
    arguments = ["advise", "--state-size", "2GB", "--rate", "50k/s", "--capacity", "150k/s"]
    outcome = CliRunner().invoke(
        app,
        [*arguments, "--figure", str(tmp_path / "f.png"), "--json", str(tmp_path / "a.json")],
    )
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.startswith("Checkpoint every")
    assert json.loads((tmp_path / "a.json").read_text())["protocol"] == "aligned"
    wrong = CliRunner().invoke(app, [*arguments, "--mtbf", "soon"])
    assert wrong.exit_code == 2 and "soon" in wrong.output
