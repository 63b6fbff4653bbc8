"""What the documents call a test is one: a promise without its test is only a wish."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECURITY = ROOT / "SECURITY.md"
GUARANTEES = ROOT / "docs" / "reference" / "guarantees.md"
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = re.compile(r"`(test_\w+)`")
FILE = re.compile(r"`(tests/[\w/.]+)`")


@cache
def found_tests() -> set[str]:
    return {
        node.name
        for file in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_is_named_exists(document: Path) -> None:
    text = document.read_text()
    functions = {name for name in NAMED.findall(text) if not name.endswith("_")}
    missing = functions - found_tests()
    assert not missing, f"{document.name} names tests that are not there: {sorted(missing)}"
    for file in FILE.findall(text):
        assert (ROOT / file).exists(), f"{document.name} names '{file}', which is not there"


def test_every_promise_in_the_guarantees_names_its_test() -> None:
    """Each row has a code, under which the last part of the page lists its tests."""
    text, _, evidence = GUARANTEES.read_text().partition("## How this is tested\n")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    promises = [row for row in rows if row[0] not in ("component", "---")]
    assert len(promises) > 60
    listed = dict(re.findall(r"^- ([A-Z]\d+): (.+)$", evidence, re.MULTILINE))
    assert [row[3] for row in promises] == list(listed)
    without = [c for c, tests in listed.items() if not (NAMED.search(tests) or FILE.search(tests))]
    assert not without, f"these promises name no test: {without}"


def test_every_threat_that_something_stops_names_its_test() -> None:
    """Only a row that promises nothing has none. That the tests exist is checked above."""
    text = SECURITY.read_text().partition("## Threat model\n")[2].partition("\n## ")[0]
    rows = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("|")]
    threats = [[cell.strip() for cell in row] for row in rows[2:]]
    assert len(threats) >= 15
    for _, tried, stops, tests in threats:
        named = NAMED.findall(tests) + FILE.findall(tests)
        assert named or stops.startswith("**nothing**"), f"'{tried}' names no test"
