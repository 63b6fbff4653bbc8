"""The journey is true: what it names is there, and its drawings are those of the tables."""

import importlib
import re
from pathlib import Path

import pytest

from everstream.core.orders import PHASE_MOVES
from everstream.core.status import MOVES
from tests.docs.scripts import ROOT, script

JOURNEY = (ROOT / "docs" / "explanation" / "journey.md").read_text()
STEPS = re.findall(r"^\| \d+ \| `(\S+)` \| (.+?) \|", JOURNEY, re.MULTILINE)


def test_the_journey_has_steps_to_check() -> None:
    assert len(STEPS) > 40


def test_a_record_passes_at_most_20_files_and_a_failure_15() -> None:
    record, failure = JOURNEY.split("## One failure", 1)
    for walk, most in ((record, 20), (failure, 15)):
        files = set(re.findall(r"^\| \d+ \| `(\S+)` \|", walk, re.MULTILINE))
        assert 10 < len(files) <= most, sorted(files)


@pytest.mark.parametrize("file, names", STEPS)
def test_what_a_step_names_is_in_its_file(file: str, names: str) -> None:
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    for name in re.findall(r"`(.+?)`", names):
        found: object = module
        for part in name.split("."):
            assert hasattr(found, part), f"there is no {name} in {file}"
            found = getattr(found, part)
        assert getattr(found, "__module__", module.__name__).startswith("everstream.")


@pytest.mark.parametrize(
    "document",
    [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda path: path.stem,
)
def test_files_of_ours_that_a_document_names_are_there(document: Path) -> None:
    for file in re.findall(r"`((?:everstream|scripts|tests|examples)/\S+?)`", document.read_text()):
        assert (ROOT / file).exists(), file


def test_the_drawings_are_those_of_the_tables() -> None:
    for file, text in script("drawings").drawings().items():
        assert file.read_text() == text, f"{file.name} is old: run `make drawings`"


def test_every_move_of_a_table_is_in_its_drawing() -> None:
    drawn = script("drawings").state_drawings()
    arrows = {file.stem: t.count("marker-end") + t.count(">→ ") for file, t in drawn.items()}
    assert arrows == {
        "shard-states": sum(map(len, MOVES.values())),
        "run-phases": sum(map(len, PHASE_MOVES.values())),
    }
