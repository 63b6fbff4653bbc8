"""Without its extras Everstream still works; what needs one says which, before it does anything."""

import ast
import json
import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import everstream
from everstream.errors import MissingExtra
from everstream.extras import extra

ROOT = Path(__file__).parents[2]
LIBRARY = Path(everstream.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {
    *("numba", "llvmlite", "matplotlib", "psycopg", "psutil", "redis", "urllib3"),
    *("confluent_kafka", "fastavro"),
}
"""What may be imported inside a `with extra(...)` only. llvmlite comes with numba."""
BROUGHT_AS = {"confluent_kafka": "confluent"}
"""The first word of the package that a module comes in, if it is another one."""

WITHOUT = f"""
import sys
from importlib.machinery import PathFinder


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.partition(".")[0] in {sorted(OPTIONAL)}
        return None if missing else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
"""Read by every Python that starts with it on its path, Spark's workers too."""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine on which no extra is installed."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def python(bare: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    folder = bare["PYTHONPATH"].partition(os.pathsep)[0]
    return subprocess.run(
        [sys.executable, *arguments], env=bare, cwd=folder, capture_output=True, text=True
    )


def brought_by(name: str) -> set[str]:
    """The packages an extra asks for, without their versions."""
    return {
        "".join(c if c.isalnum() else " " for c in wanted).split()[0]
        for wanted in PROJECT["optional-dependencies"][name]
    }


def test_each_optional_import_stands_under_an_extra_that_brings_it() -> None:
    found = set()
    for path in sorted(LIBRARY.rglob("*.py")):
        under: dict[int, str] = {}
        tree = ast.parse(path.read_text())
        for block in ast.walk(tree):
            match block:
                case ast.With(
                    items=[
                        ast.withitem(
                            ast.Call(func=ast.Name("extra"), args=[ast.Constant(str(name))])
                        )
                    ]
                ):
                    under |= {id(node): name for node in ast.walk(block)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            for package in {module.partition(".")[0] for module in modules} & OPTIONAL:
                assert id(node) in under, f"{path} imports {package} outside of `with extra(...)`"
                if package != "llvmlite":
                    assert BROUGHT_AS.get(package, package) in brought_by(under[id(node)]), path
                found.add(package)
    assert found == OPTIONAL


def test_nothing_optional_is_installed_with_the_library_and_dev_and_all_bring_everything() -> None:
    always = {wanted.partition(">")[0] for wanted in PROJECT["dependencies"]}
    assert not always & OPTIONAL
    extras = PROJECT["optional-dependencies"]
    lists = [some.partition("[")[2].rstrip("]") for some in extras["all"]]
    named = [name for names in lists for name in names.split(",")]
    assert set(named) == set(extras) - {"all", "docs", "dev"}
    assert "everstream[all,docs]" in extras["dev"]


def test_modules_without_an_extra_are_there_and_the_others_name_theirs(
    bare: dict[str, str],
) -> None:
    program = """
import importlib, json, pkgutil, everstream
from everstream.errors import MissingExtra
missing = {}
for module in pkgutil.walk_packages(everstream.__path__, "everstream.", lambda name: None):
    if module.name.endswith("__main__") or module.name == "everstream.engine.tasks.daemon":
        continue
    try:
        importlib.import_module(module.name)
    except MissingExtra as error:
        missing[module.name] = error.message.partition("everstream[")[2].partition("]")[0]
print(json.dumps(missing))
"""
    done = python(bare, "-c", program)
    assert done.returncode == 0, done.stderr
    missing: dict[str, str] = json.loads(done.stdout)
    packages = {name.split(".")[1] for name in missing}
    assert packages == {"demo", "planning", "transactions"}
    named = {
        "transactions": "transactions",
        "planning.figures": "report",
        "demo.timeline": "report",
    }
    assert {name: missing[f"everstream.{name}"] for name in named} == named
    for light in ("planning.auto", "planning.adviser", "audit.rehearsal"):
        assert f"everstream.{light}" not in missing


@pytest.mark.parametrize(
    "command, name",
    [
        ("demo", "report"),
        ("advise --rate 50k/s --state-size 1GB --figure cost.png", "report"),
        ("run ledger.py", "transactions"),
    ],
)
def test_a_command_that_needs_an_extra_says_so_before_it_starts_anything(
    bare: dict[str, str], tmp_path: Path, command: str, name: str
) -> None:
    (tmp_path / "ledger.py").write_text((ROOT / "examples" / "ledger.py").read_text())
    before = set(tmp_path.iterdir())
    done = python(bare, "-m", "everstream", *command.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"pip install 'everstream[{name}]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path for path in tmp_path.iterdir() if path.name != "__pycache__"} == before


def test_a_run_that_paces_its_own_checkpoints_needs_no_extra(bare: dict[str, str]) -> None:
    program = """
import everstream as es
from everstream.planning import advise
pipeline = es.Pipeline("squares")
pipeline.source(es.Range(1000)).map(lambda n: n * n).collect()
if __name__ == "__main__":
    result = pipeline.run(checkpoint=es.Coordinated(every="auto"), master="local[2]")
    assert sorted(result.collected()) == [n * n for n in range(1000)]
    advice = advise(rate="50k/s", state_size="1GB")
    print("every", advice.interval_s, es.__version__)
"""
    done = python(bare, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("every")


def test_a_missing_extra_is_a_users_error_an_import_error_and_pickles() -> None:
    wanted = r"pip install 'everstream\[report\]'"
    with pytest.raises(MissingExtra, match=wanted) as raised, extra("report"):
        import no_such_package_anywhere  # type: ignore[import-not-found]  # noqa: F401
    assert isinstance(raised.value, everstream.UserError) and isinstance(raised.value, ImportError)
    assert pickle.loads(pickle.dumps(raised.value)).message == raised.value.message


def test_another_error_in_an_import_is_not_called_a_missing_extra() -> None:
    with pytest.raises(ImportError, match="torn") as raised, extra("report"):
        raise ImportError("the file is torn")
    assert not isinstance(raised.value, MissingExtra)
