"""The documents tell the truth: their programs run, their links lead somewhere, their commands
have the options they use, and the examples in docstrings give what they say."""

import doctest
import importlib
import pkgutil
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer

import everstream
from everstream.cli import app
from everstream.pipeline.stream import Pipeline
from everstream.spark.result import RunResult

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / name
        for name in (
            "architecture.md",
            "guarantees.md",
            "operators.md",
            "event-time.md",
            "protocols.md",
        )
    ),
]
MASTER = "local[2]"


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


def run_block(document: str, number: int) -> dict[str, RunResult]:
    """Run the program in a document, and the pipeline it defines; its results by name."""
    program = blocks(ROOT / document, "python")[number]
    names: dict[str, Any] = {"__name__": "a_program_in_the_documents"}
    exec(compile(program, f"{document}, program {number}", "exec"), names)
    pipelines = [value for value in names.values() if isinstance(value, Pipeline)]
    assert pipelines, "the program defines a pipeline"
    return {pipeline.name: pipeline.run(master=MASTER) for pipeline in pipelines}


@pytest.fixture(autouse=True)
def _in_a_folder_with_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / "books", tmp_path / "books")
    monkeypatch.chdir(tmp_path)


def test_every_program_in_the_documents_has_a_test_here() -> None:
    found = {document.name: len(blocks(document, "python")) for document in DOCUMENTS}
    assert found == {
        "README.md": 2,
        "architecture.md": 0,
        "guarantees.md": 0,
        "operators.md": 3,
        "event-time.md": 3,
        "protocols.md": 2,
    }


def test_the_first_pipeline_of_the_readme_counts_words() -> None:
    (result,) = run_block("README.md", 0).values()
    words = sum(len(book.read_text().split()) for book in Path("books").glob("*.txt"))
    assert result.records_out == words
    written = [line for part in Path("counts").glob("*.jsonl") for line in part.open()]
    assert len(written) == words


def test_the_first_pipeline_of_the_readme_is_the_example() -> None:
    (program,) = blocks(ROOT / "README.md", "python")[:1]
    graph = program[program.index("pipeline = ") :].replace(" ", "").replace("\n", "")
    example = (ROOT / "examples" / "word_count.py").read_text()
    without_comments = re.sub(r"#.*", "", example)
    assert graph in without_comments.replace(" ", "").replace("\n", "")


def test_the_columns_of_the_readme_give_the_high_bids() -> None:
    (result,) = run_block("README.md", 1).values()
    prices = [n * 7919 % 100_000 for n in range(1_000_000)]
    expected = Counter(price for price in prices if price > 99_000)
    assert Counter(result.to_polars()["price"].to_list()) == expected


def test_the_branches_of_the_operators_page() -> None:
    (result,) = run_block("docs/operators.md", 0).values()
    assert sorted(result.collected("small")) == [str(n) for n in range(10)]
    last: dict[int, int] = {}
    for key, value in result.collected("large"):
        last[key] = max(value, last.get(key, 0))
    assert last == {key: sum(n for n in range(10, 1000) if n % 7 == key) for key in range(7)}


def test_the_operator_class_of_the_operators_page() -> None:
    (result,) = run_block("docs/operators.md", 1).values()
    balances, expected = Counter[int](), []
    for n in range(50):
        balances[n % 5] += 100 - n * 10
        expected.append((n % 5, balances[n % 5]))
    assert Counter(result.collected("balances")) == Counter(expected)
    assert sorted(result.collected("overdrawn")) == [0, 1, 2, 3, 4]


def test_the_source_of_the_operators_page() -> None:
    (result,) = run_block("docs/operators.md", 2).values()
    assert result.collected() == list(range(10, 0, -1))


def program(document: str, number: int) -> dict[str, Any]:
    """The names that a program in a document defines."""
    names: dict[str, Any] = {"__name__": "a_program_in_the_documents"}
    text = blocks(ROOT / document, "python")[number]
    exec(compile(text, f"{document}, program {number}", "exec"), names)
    return names


def test_the_branches_of_the_protocols_page(capsys: pytest.CaptureFixture[str]) -> None:
    program("docs/protocols.md", 0)["survive"]("local[3]")
    assert "went back: ('left:0',)" in capsys.readouterr().out


def test_the_loop_of_the_protocols_page() -> None:
    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    pipeline = program("docs/protocols.md", 1)["pipeline"]
    result = pipeline.run(checkpoint=everstream.Induced(every="1s"), master=MASTER)
    assert Counter(result.collected("steps")) == Counter((n, steps(n)) for n in range(1, 1000))


def test_the_windows_of_the_event_time_page() -> None:
    (result,) = run_block("docs/event-time.md", 0).values()
    numbers = range(100_000)
    counts: Counter[tuple[int, int]] = Counter()
    for n in numbers:
        at = n - n * 31 % 500
        for start in range(at // 2000 * 2000 - 8000, at + 1, 2000):
            counts[n % 7, start] += 1
    rows = result.to_polars("per_auction")
    shown = {(row["auction"], row["window_start"]): row["bids"] for row in rows.rows(named=True)}
    assert shown == counts and len(rows) == len(counts)
    assert result.collected("late") == []
    best = {start: max(n for (_, s), n in counts.items() if s == start) for _, start in counts}
    hot = {row["window_end"] - 10_000: row["bids"] for (row,) in _tops(result)}
    assert hot == best


def _tops(result: RunResult) -> list[Any]:
    return [row["top"] for row in result.to_polars("hot").rows(named=True)]


def test_the_running_counts_of_the_event_time_page() -> None:
    (result,) = run_block("docs/event-time.md", 1).values()
    changes = result.to_polars("changes")
    words = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"]
    assert dict(changes.select("word", "count").rows()) == Counter(words)
    assert Counter(result.to_polars("records").rows())["to", 2] == 1


def test_the_joins_of_the_event_time_page() -> None:
    (result,) = run_block("docs/event-time.md", 2).values()
    ads, clicks = [(n % 3, n * 10) for n in range(20)], [(n % 3, n * 15 + 2) for n in range(12)]
    pairs = [(a, c) for user, a in ads for other, c in clicks if user == other]
    soon = result.to_polars("soon").select("at", "at_right").rows()
    assert Counter(soon) == Counter((a, c) for a, c in pairs if 0 <= c - a <= 30)
    minutes = result.to_polars("minutes").select("at", "at_right", "window_start").rows()
    together = Counter((a, c, a // 60 * 60) for a, c in pairs if a // 60 == c // 60)
    assert Counter(minutes) == together


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_that_are_there(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not link.startswith("https://"):
            assert (document.parent / link).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_have_the_options_the_documents_use(document: Path) -> None:
    commands: Any = typer.main.get_command(app)
    for block in blocks(document, "sh"):
        for line in re.findall(r"^everstream .*", block, re.MULTILINE):
            words = line.split("#")[0].split()
            command = commands.commands[words[1]]
            if words[1] == "bench":
                command = command.commands[words[2]]
            known = {name for option in command.params for name in option.opts}
            assert {word for word in words if word.startswith("--")} <= known, line


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {"demo", "test", "help"} <= set(named) <= targets


def test_examples_in_docstrings_give_what_they_say() -> None:
    attempted = 0
    for module in pkgutil.walk_packages(everstream.__path__, "everstream."):
        if module.name.endswith("__main__") or module.name == "everstream.spark.daemon":
            continue
        failed, tried = doctest.testmod(importlib.import_module(module.name))
        assert failed == 0, module.name
        attempted += tried
    assert attempted > 0
