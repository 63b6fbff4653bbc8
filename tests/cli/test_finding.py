"""Finding the pipeline a user names, and saying in one line why there is none."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from everstream.cli.runs.finding import load_pipeline
from everstream.errors import UserError

GOOD = """
import everstream as es

def double(number):
    return 2 * number

pipeline = es.Pipeline("good")
pipeline.source(es.Range(3)).map(double).collect()
if __name__ == "__main__":
    raise SystemExit("not when loaded")
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("good", "program"):  # other tests have modules of these names
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def test_a_file_is_loaded_without_its_main_part() -> None:
    Path("good.py").write_text(GOOD)
    assert load_pipeline("good.py").name == "good"


def test_a_pipeline_is_found_by_its_name_in_a_file_and_in_a_module() -> None:
    Path("good.py").write_text(GOOD)
    assert load_pipeline("good.py:pipeline").name == "good"
    assert load_pipeline("good:pipeline").name == "good"


def test_a_module_may_make_the_pipeline_that_it_is_asked_for() -> None:
    Path("program.py").write_text(
        "import everstream as es\n"
        "def __getattr__(name):\n"
        "    if not name.startswith('n'):\n"
        "        raise AttributeError(name)\n"
        "    return es.Pipeline(name)\n"
    )
    assert load_pipeline("program:n12").name == "n12"
    with pytest.raises(UserError, match="program has no 'm12'"):
        load_pipeline("program:m12")


def test_a_file_may_have_the_name_of_a_module_and_import_its_neighbours() -> None:
    Path("neighbour.py").write_text("NAME = 'from-neighbour'\n")
    Path("json.py").write_text(
        "import everstream as es\nimport neighbour\npipeline = es.Pipeline(neighbour.NAME)\n"
    )
    import json

    assert load_pipeline("json.py").name == "from-neighbour"
    assert sys.modules["json"] is json


def test_functions_of_a_file_reach_processes_that_do_not_have_it(tmp_path: Path) -> None:
    Path("good.py").write_text(GOOD)
    load_pipeline("good.py")
    Path("pickled").write_bytes(cloudpickle.dumps(sys.modules["good"].double))
    Path("good.py").unlink()
    program = "import pickle; print(pickle.load(open('pickled', 'rb'))(21))"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == "42"


@pytest.mark.parametrize(
    ("content", "target", "says"),
    [
        (None, "missing.py", "there is no file 'missing.py'"),
        (None, "missing_module:pipeline", "there is no module 'missing_module'"),
        (None, "missing.py:", "write FILE.py, FILE.py:NAME or module:NAME"),
        (GOOD, "program:pipeline:", "write FILE.py"),
        (GOOD, "program.py:typo", "has no 'typo'; the pipelines in it: pipeline"),
        (GOOD, "program.py:double", "'double' in program.py is of type function"),
        (GOOD, "program", None),
        ("x = 1\n", "program.py", "defines no es.Pipeline"),
        ("def f(:\n", "program.py", "line 1: invalid syntax: def f(:"),
        ("x = 1\ny = unknown\n", "program.py", "line 2: NameError: name 'unknown'"),
        ("import not_installed\n", "program.py", "ModuleNotFoundError: No module named"),
        ("import sys\nsys.exit(3)\n", "program.py", "line 2: SystemExit: 3"),
        (
            "import everstream as es\np = es.Pipeline('p')\np.source(1)\n",
            "program.py",
            "line 3: source() takes a Source",
        ),
        (
            "import everstream as es\na = es.Pipeline('a')\nb = es.Pipeline('b')\n",
            "program.py",
            "several pipelines: say program.py:a or program.py:b",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    content: str | None, target: str, says: str | None
) -> None:
    if content is not None:
        Path("program.py").write_text(content)
    if says is None:
        assert load_pipeline(target).name == "good"
        return
    with pytest.raises(UserError) as caught:
        load_pipeline(target)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
