"""A command loads what it needs and no more; lists, completion and plug-in commands know all of them."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from everstream.cli import commands
from everstream.cli.app import app
from everstream.cli.commands import MODULES
from tests.cli.commands import ROOT

COMMANDS_OF_OTHERS = {"bench", "apps"}


def loaded_by(program: str) -> set[str]:
    """The modules that a new Python has loaded after this program."""
    text = f"{program}\nimport json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def called(name: str) -> str:
    """A program that makes the command of this name, as a call of it does."""
    return (
        "import typer\n"
        "from everstream.cli.app import app\n"
        f"typer.main.get_command(app).commands[{name!r}]"
    )


@pytest.mark.parametrize("name", ["run", "config", "new", "help", "top"])
def test_a_command_loads_no_other_and_nothing_heavy(name: str) -> None:
    modules = loaded_by(called(name))
    heavy = {"numpy", "polars", "pyarrow", "pyspark", "pandas", "fsspec", "matplotlib"}
    assert modules & heavy == set()
    assert [one for one in modules if one.startswith("everstream_lab")] == []
    shared = {"everstream.cli.runs.command", "everstream.cli.stores.checkpoints"}
    others = {module for module in MODULES.values() if module != MODULES[name]} - shared
    assert modules & others == set()


def test_every_command_of_the_table_is_made_by_its_module() -> None:
    made = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [made[name].name for name in MODULES] == list(MODULES)
    assert "no-such-command" not in made


def test_help_lists_all_commands_in_the_order_of_the_table_and_then_those_of_others() -> None:
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    listed = re.findall(r"^\W+(\w+) {2,}\w", said.output, re.MULTILINE)
    assert [name for name in listed if name in MODULES] == list(MODULES)
    assert set(listed) >= COMMANDS_OF_OTHERS


def test_a_mistyped_command_is_corrected_from_all_of_them() -> None:
    said = CliRunner().invoke(app, ["bensh"], env={"COLUMNS": "200"})
    assert said.exit_code == 2 and "bench" in said.output


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("everstream au", "audit"),
        ("everstream ben", "bench"),
        ("everstream bench eng", "engines"),
        ("everstream model pap", "paper"),
        ("everstream run --eng", "--engine"),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, found: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lab")]),
        "_EVERSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    program = "import sys; sys.argv = ['everstream']; from everstream_command import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert found in done.stdout.split(), done.stderr


def test_without_the_laboratory_its_commands_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "entry_points", lambda group: [])
    commands._of_other_distributions.cache_clear()
    try:
        said = CliRunner().invoke(app, ["bench", "engines"])
        assert "pip install everstream-lab" in str(said.exception)
        listed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
        assert "bench" not in listed.output
    finally:
        commands._of_other_distributions.cache_clear()


WORD_COUNT = ROOT / "examples" / "word_count.py"
RECORDING = """
import os, sys

class Recorder:
    def find_spec(self, name, path=None, target=None):
        with open(os.environ["LOADED"], "a") as file:
            file.write(name + "\\n")

sys.meta_path.insert(0, Recorder())
"""


def test_a_local_run_loads_each_module_once_and_neither_spark_nor_the_page(tmp_path: Path) -> None:
    """Its processes are forks: what was imported before is not imported again."""
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("to be or not to be\n" * 10)
    (tmp_path / "sitecustomize.py").write_text(RECORDING)
    loaded = tmp_path / "loaded"
    command = ["run", str(WORD_COUNT), "--engine", "local", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "everstream", *command],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
            "LOADED": str(loaded),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    times = Counter(loaded.read_text().splitlines())
    unwanted = {"pyspark", "py4j", "pandas", "matplotlib", "starlette", "uvicorn", "numba"}
    # Polars looks whether pandas is installed; only an import asks for its submodules.
    assert unwanted & {name.partition(".")[0] for name in times if "." in name} == set()
    for once in ("polars", "everstream.engine.continuous.worker.worker", "numpy.random"):
        assert times[once] == 1, once
    connectors = [name for name in times if name.startswith("everstream.connectors.")]
    assert not [name for name in connectors if name.split(".")[2] in ("kafka", "lake", "sql")]
