"""The site builds without a warning, loads nothing from elsewhere, and its reference is whole."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import everstream
from everstream.pipeline.options import OPTIONS
from tests.docs.scripts import ROOT, script

REFERENCE = ROOT / "docs" / "reference"
as_markdown = script("docstrings").as_markdown
OUTSIDE = re.compile(
    r"""(?:src=|url\(|@import )["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return place


def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists(), page
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = OUTSIDE.search(file.read_text())
        assert found is None, f"{file.name} loads {found[0]} from elsewhere" if found else ""


def test_the_reference_shows_signatures_docstrings_and_examples(site: Path) -> None:
    page = (site / "reference" / "pipelines.html").read_text()
    assert 'id="everstream.Stream.key_by"' in page
    assert str(everstream.Stream.key_by.__doc__).splitlines()[0] in page
    assert "&gt;&gt;&gt;" not in re.sub(r"<code>.*?</code>", "", page, flags=re.DOTALL)


def test_every_public_name_is_in_the_reference_once() -> None:
    shown = Counter(
        name
        for page in REFERENCE.glob("*.md")
        for name in re.findall(r"^::: everstream\.(\w+)$", page.read_text(), re.MULTILINE)
    )
    assert shown == Counter(everstream.__all__), (
        "add `::: everstream.NAME` to a page of the reference"
    )


def test_the_index_of_the_reference_names_what_its_pages_show() -> None:
    index = (REFERENCE / "index.md").read_text()
    for page, names in re.findall(r"^\| \[.+?\]\((\w+\.md)\) \| (.+?) \|$", index, re.MULTILINE):
        shown = re.findall(r"^::: everstream\.(\w+)$", (REFERENCE / page).read_text(), re.MULTILINE)
        assert not shown or re.findall(r"`(\w+)`", names) == shown, page


def test_examples_in_docstrings_become_programs() -> None:
    text = "One and one.\n\n>>> 1 + 1\n2\n\nThat is it."
    assert as_markdown(text) == ("One and one.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThat is it.")
    inset = "As here:\n\n    >>> 1 + 1\n    2\n"
    assert as_markdown(inset) == "As here:\n\n```pycon\n>>> 1 + 1\n2\n```\n"


def test_parameters_in_docstrings_become_a_list() -> None:
    text = "Run.\n\nstore: a folder,\n    or a URL.\nmaster, spark: a session."
    assert as_markdown(text) == (
        "Run.\n\n- **store**: a folder,\n    or a URL.\n- **master, spark**: a session."
    )
    prose = "Two kinds: the first\nand the second."
    assert as_markdown(prose) == prose


def test_the_page_of_options_is_made_from_their_definition() -> None:
    options = script("options")
    text = options.PAGE.read_text()
    assert options.page(text) == text, "run python scripts/options.py"
    for name in OPTIONS:
        assert f"| `{name}`" in text
