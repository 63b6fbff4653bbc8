"""`import everstream` is the whole public surface: light, complete, documented, and in step."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import everstream as es
from everstream import annotations, connectors, errors, planning
from everstream.engine import run as engine_run

ROOT = Path(__file__).parents[1]
PUBLIC = sorted(es.__all__)
CLASSES = [name for name in PUBLIC if inspect.isclass(getattr(es, name))]
SETTINGS = {"Coordinated", "Uncoordinated", "CommunicationInduced"}
"""What these have besides their fields is read by engines."""
CONSTANTS = [name for name in PUBLIC if name.isupper()]


def public_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that users may call, and that are ours."""
    for name, member in inspect.getmembers_static(kind):
        owner = next((base for base in kind.__mro__ if name in vars(base)), object)
        ours = owner.__module__.startswith("everstream")
        is_method = inspect.isfunction(member) or isinstance(member, property | classmethod)
        if ours and is_method and not name.startswith("_"):
            yield name, member


def test_importing_everstream_loads_neither_spark_nor_compilers_nor_plots() -> None:
    heavy = (
        "pyspark",
        "py4j",
        "numba",
        "matplotlib",
        "zmq",
        "psycopg",
        "numpy",
        "polars",
        "fsspec",
    )
    program = f"import sys, everstream; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


@pytest.mark.parametrize("package", [es, annotations, connectors, planning])
def test_what_is_loaded_on_first_use_is_what_type_checkers_see(package: ModuleType) -> None:
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text())
    (typing_only,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and "not" not in ast.unparse(node.test)
    )
    seen = {
        alias.name: node.module
        for node in typing_only.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name != "events"  # a module
    }
    homes = package._HOMES
    assert {name: module for module in homes for name in homes[module].split()} == seen
    assert seen.keys() <= set(dir(package)) and seen.keys() >= {*package.__all__} - {"events"}


def test_modules_that_the_docstring_names_need_no_import() -> None:
    program = "import everstream as es; es.errors.GraphError, es.planning.advise, es.connectors.END"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_and_named_once() -> None:
    assert len(set(es.__all__)) == len(es.__all__)
    assert [name for name in PUBLIC if not hasattr(es, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'Strem'"):
        getattr(es, "Strem")  # noqa: B009


def test_it_stays_small_enough_to_be_read() -> None:
    assert len(PUBLIC) <= 88


ELSEWHERE = {
    "everstream.errors": "GraphError OperatorError RefusedRecords EnvironmentFault StoreError",
    "everstream.inspection": "edit_savepoint SavepointEdit StateEdit read_state read_tables",
    "everstream.inspection.datasource": "register",
    "everstream.planning": "advise Advice",
    "everstream.connectors": "Reader END Writer Committable Permit SinkShard Delivery",
}


@pytest.mark.parametrize("module", ELSEWHERE)
def test_what_only_some_programs_need_is_in_a_module_of_its_own(module: str) -> None:
    found = importlib.import_module(module)
    for name in ELSEWHERE[module].split():
        assert hasattr(found, name)
        assert name not in PUBLIC and not hasattr(es, name), f"{name} has two homes"


def test_a_program_catches_errors_by_three_names_and_finds_all_others_documented() -> None:
    kinds = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception)
    }
    assert kinds & set(PUBLIC) == {"EverstreamError", "UserError", "RunFailed"}
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    shown = re.findall(r"^## `(\w+)`$", page, re.MULTILINE)
    assert sorted(shown) == sorted(kinds)
    assert [kind for kind in kinds if not inspect.getdoc(getattr(errors, kind))] == []


def test_no_two_names_differ_only_in_case() -> None:
    assert len({name.lower() for name in PUBLIC}) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - set(CONSTANTS)))
def test_every_public_name_has_a_docstring(name: str) -> None:
    what = getattr(es, name)
    own = vars(what).get("__doc__") if inspect.isclass(what) else what.__doc__
    assert own and not own.startswith(f"{name}("), "none, or the one that a dataclass makes"


@pytest.mark.parametrize("name", sorted(set(CLASSES) - SETTINGS))
def test_every_public_method_has_a_docstring(name: str) -> None:
    members = public_members(getattr(es, name))
    assert [method for method, found in members if not inspect.getdoc(found)] == []


WINDOW_FUNCTIONS = ("rank", "lag", "lead", "cumulative")


def with_examples() -> Iterator[tuple[str, Any]]:
    for kind in (es.Stream, es.KeyedStream, es.WindowedStream):
        for name, method in public_members(kind):
            yield f"{kind.__name__}.{name}", method
    for name in CLASSES:
        kind = getattr(es, name)
        if issubclass(kind, es.Source | es.Sink) or name in ("Tumbling", "Sliding", "Session"):
            yield name, kind
    for name in ("count", "sum", "avg", "min", "max", "top_k", "custom", *WINDOW_FUNCTIONS):
        yield name, getattr(es, name)


def test_streams_sources_sinks_aggregates_and_windows_have_examples() -> None:
    wanted = dict(with_examples())
    assert len(wanted) > 60
    texts = {name: inspect.getdoc(what) or "" for name, what in wanted.items()}
    assert [name for name, text in texts.items() if ">>> " not in text] == []


def test_the_documents_name_what_is_public_and_nothing_else() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = {path: path.read_text() for path in documents}
    written = [words for words in text.values() if "<!-- generated by " not in words]
    named = {
        (path.name, name)
        for path, words in text.items()
        for name in re.findall(r"\bes\.([A-Za-z_]+)", words)
        if name not in PUBLIC
    }
    assert named == set()
    explained = " ".join(written)
    assert [name for name in PUBLIC if not re.search(rf"\b{name}\b", explained)] == []


@pytest.mark.parametrize("method", ["run", "start"])
def test_pipeline_run_hands_options_and_keywords_to_the_engine(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(engine_run, method, lambda *args, **more: given.append((args, more)))
    pipeline, options = es.Pipeline("test"), es.RunOptions(fresh=True)
    getattr(pipeline, method)(options, workers=2)
    assert given == [((pipeline, options), {"workers": 2})]
