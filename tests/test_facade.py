"""`import everstream` is the whole public surface: light, complete, documented, and in step."""

import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream import errors
from everstream.pipeline import stream
from everstream.pipeline.stream import Pipeline
from everstream.spark import run as spark_run

ROOT = Path(__file__).parents[1]
PUBLIC = sorted(es.__all__)
CLASSES = [name for name in PUBLIC if inspect.isclass(getattr(es, name))]
SETTINGS = {"Coordinated", "Uncoordinated", "Induced"}
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
    heavy = ("pyspark", "py4j", "numba", "matplotlib", "zmq", "psycopg")
    program = f"import sys, everstream; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def test_every_public_name_is_there_and_named_once() -> None:
    assert len(set(es.__all__)) == len(es.__all__)
    assert [name for name in PUBLIC if not hasattr(es, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'Strem'"):
        getattr(es, "Strem")  # noqa: B009


def test_all_errors_are_public() -> None:
    found = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception)
    }
    assert found <= set(PUBLIC)


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - set(CONSTANTS)))
def test_every_public_name_has_a_docstring(name: str) -> None:
    what = getattr(es, name)
    own = vars(what).get("__doc__") if inspect.isclass(what) else what.__doc__
    assert own and not own.startswith(f"{name}("), "none, or the one that a dataclass makes"


@pytest.mark.parametrize("name", sorted(set(CLASSES) - SETTINGS))
def test_every_public_method_has_a_docstring(name: str) -> None:
    members = public_members(getattr(es, name))
    assert [method for method, found in members if not inspect.getdoc(found)] == []


def with_examples() -> Iterator[tuple[str, Any]]:
    for kind in (es.Stream, es.KeyedStream, es.WindowedStream):
        for name, method in public_members(kind):
            yield f"{kind.__name__}.{name}", method
    for name in CLASSES:
        kind = getattr(es, name)
        if issubclass(kind, es.Source | es.Sink) or name in ("Tumbling", "Sliding", "Session"):
            yield name, kind
    for name in ("count", "sum", "avg", "min", "max", "top_k", "custom"):
        yield name, getattr(es, name)


def test_streams_sources_sinks_aggregates_and_windows_have_examples() -> None:
    wanted = dict(with_examples())
    assert len(wanted) > 60
    texts = {name: inspect.getdoc(what) or "" for name, what in wanted.items()}
    assert [name for name, text in texts.items() if ">>> " not in text] == []


def test_the_documents_name_what_is_public_and_nothing_else() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = {path: path.read_text() for path in documents}
    named = {
        (path.name, name)
        for path, words in text.items()
        for name in re.findall(r"\bes\.([A-Za-z_]+)", words)
        if name not in PUBLIC
    }
    assert named == set()
    explained = " ".join(text.values())
    assert [name for name in PUBLIC if not re.search(rf"\b{name}\b", explained)] == []


@pytest.mark.parametrize("method", ["run", "start"])
def test_pipeline_run_has_the_keywords_of_the_engine(method: str) -> None:
    """Names, order, defaults and types."""
    ours, engine = getattr(Pipeline, method), getattr(spark_run, method)
    offered, taken = inspect.signature(ours), inspect.signature(engine)
    plain = [
        [(p.name, p.kind, p.default) for p in signature.parameters.values()][1:]
        for signature in (offered, taken)
    ]
    assert plain[0] == plain[1]
    # `Pipeline` has the types of the engine for type checkers only: look them up where they are.
    names = {**vars(spark_run), **vars(stream)}
    hints = typing.get_type_hints(ours, names)
    of_engine = typing.get_type_hints(engine)
    assert hints == {name: hint for name, hint in of_engine.items() if name != "pipeline"}


@pytest.mark.parametrize("method", ["run", "start"])
def test_pipeline_run_hands_every_keyword_on(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(spark_run, method, lambda pipeline, **options: given.update(options))
    ours = getattr(Pipeline, method)
    keywords = [name for name in inspect.signature(ours).parameters if name != "self"]
    wanted: dict[str, Any] = {name: object() for name in keywords}
    getattr(Pipeline("test"), method)(**wanted)
    assert given == wanted
