"""`everstream config`: the values that apply, where they come from, and no secrets."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import everstream.cli.runs.command as run_command
from everstream.cli.app import app
from everstream.cli.runs.arguments import RunCommand
from everstream.pipeline.options import SETTINGS

SECRET = "s3://me:geheim@bucket/shop?token=geheim"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "shop.py").touch()
    (tmp_path / "jobs" / "everstream.toml").write_text(f'workers = 2\nstore = "{SECRET}"\n')
    return tmp_path


def config(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(
        app,
        ["config", *arguments],
        env={"COLUMNS": "200", "EVERSTREAM_PROGRESS": "", **environment},
    )


def test_every_setting_is_shown_with_its_origin(project: Path) -> None:
    shown = config("jobs/shop.py:pipeline", "--every", "2s", "--json", EVERSTREAM_SPARES="1")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    assert list(found) == list(SETTINGS)
    assert found["workers"] == {
        "value": 2,
        "origin": f"{project / 'jobs' / 'everstream.toml'}, line 1",
    }
    assert found["every"] == {"value": "2s", "origin": "flag --every"}
    assert found["spares"] == {"value": 1, "origin": "environment EVERSTREAM_SPARES"}
    assert found["max_restarts"] == {"value": "3", "origin": "default"}
    assert found["progress"]["origin"] == "default"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_names_and_passwords_are_hidden(project: Path, form: tuple[str, ...]) -> None:
    shown = config("jobs/shop.py", *form)
    assert "s3://bucket/shop" in shown.output
    assert "geheim" not in shown.output


def test_without_a_program_the_file_of_the_working_directory_counts(project: Path) -> None:
    assert json.loads(config("--json").output)["workers"]["origin"] == "default"
    (project / "everstream.toml").write_text("workers = 4\n")
    assert json.loads(config("--json").output)["workers"]["value"] == 4
    assert json.loads(config("jobs/shop.py", "--json").output)["workers"]["value"] == 2


def test_what_would_be_refused_is_refused(project: Path) -> None:
    assert config("--workers", "0").exit_code == 2
    refused = config("--log", "memory")
    assert refused.exit_code == 2 and "aligned keeps no log" in refused.output


def test_a_run_has_what_config_shows(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunCommand] = []
    monkeypatch.setattr(run_command, "run_supervised", lambda command, *_: asked.append(command))
    arguments = ["run", "jobs/shop.py", "--max-restarts", "5", "--no-history", "--standby"]
    done = CliRunner().invoke(app, arguments, env={"EVERSTREAM_WORKERS": "3"})
    assert done.exit_code == 0, done.output
    options = asked[0].options
    assert (options.resources.workers, options.recovery.max_restarts) == (3, 5)
    assert (options.history, options.standby, options.store) == (False, True, SECRET)
