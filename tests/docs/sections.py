"""Programs in documents, found by the heading they stand under."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).with_name("test_connector_programs.py")


def _programs(document: str) -> list[tuple[str, str]]:
    """Heading and text of each program."""
    programs, heading = [], ""
    pieces = re.split(r"(?ms)^(#+ .+?$|```python\n.*?^```$)", (ROOT / document).read_text())
    for piece in pieces:
        if piece.startswith("#"):
            heading = piece.lstrip("# ")
        elif piece.startswith("```python\n"):
            programs.append((heading, piece.removeprefix("```python\n").removesuffix("```")))
    return programs


def program_under(document: str, heading: str, instead: dict[str, str]) -> dict[str, Any]:
    """The names that the only program under a heading defines, with other words in it."""
    (text,) = [text for above, text in _programs(document) if above == heading]
    for written, meant in instead.items():
        assert written in text, f"{document}, {heading}: there is no {written}"
        text = text.replace(written, meant)
    names: dict[str, Any] = {"__name__": "a_program_in_the_documents"}
    exec(compile(text, f"{document}, {heading}", "exec"), names)
    return names


def programs_under_a_tested_heading() -> set[tuple[str, int]]:
    """Document and number of the programs that `test_connector_programs` runs by heading."""
    calls = re.findall(r"program_under\(\s*\"(.+?)\", \"(.+?)\"", TESTS.read_text())
    return {
        (document, number)
        for document, heading in calls
        for number, (above, _) in enumerate(_programs(document))
        if above == heading
    }
