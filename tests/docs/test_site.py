"""The site builds without a warning, loads nothing from elsewhere, and its reference is whole."""

import inspect
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
api = script("api_reference")
cli = script("cli_reference")
as_markdown = api.as_markdown
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
    assert 'id="streamkey_by"' in page
    assert str(everstream.Stream.key_by.__doc__).splitlines()[0] in page
    assert "&gt;&gt;&gt;" not in re.sub(r"<code>.*?</code>", "", page, flags=re.DOTALL)


def test_the_reference_is_made_from_the_code() -> None:
    for file, text in api.pages().items():
        assert file.read_text() == text, f"{file.name} is old: run `make reference`"
    assert cli.PAGE.read_text() == cli.page(), "command-line.md is old: run `make reference`"


def headings(page: str) -> list[str]:
    return re.findall(r"^##+ `(.+)`$", (REFERENCE / page).read_text(), re.MULTILINE)


def test_every_public_name_is_in_the_reference_once() -> None:
    on_other_pages = {"events", "RunEvent", *(k.__name__ for k in api.error_classes())}
    in_facade = {*everstream.__all__} - on_other_pages
    shown = Counter(
        entry.title for page in api.PAGES for entry in page.entries if entry.module == "everstream"
    )
    assert shown == Counter(in_facade), "add it to PAGES in scripts/api_reference.py"
    for page in api.PAGES:
        for entry in page.entries:
            assert headings(page.file).count(entry.title) == 1


INSIDE = {"Pipeline.with_nodes", "Pipeline.ended", "Pipeline.graph"}
"""Methods for engines and tools; those of connectors are described at `Source` and `Sink`."""


def test_every_public_method_is_in_the_reference() -> None:
    missing = []
    for page in api.PAGES:
        shown = set(headings(page.file))
        for entry in page.entries:
            kind = api.find(entry.name)
            if entry.members == api.NONE or entry.title == "Binary" or not isinstance(kind, type):
                continue
            inherited = entry.members == api.ALL
            for name in dir(kind) if inherited else vars(kind):
                member = inspect.getattr_static(kind, name)
                call = inspect.isfunction(member) or isinstance(member, property | classmethod)
                if call and not name.startswith("_"):
                    missing.append(f"{entry.title}.{name}")
        missing = [name for name in missing if name not in shown | INSIDE]
    assert missing == []
    for name in ("Stream.map", "Stream.key_by", "KeyedStream.aggregate", "Pipeline.run"):
        assert name in headings("pipelines.md")


def test_parameters_have_types_and_defaults_in_the_reference() -> None:
    connectors = (REFERENCE / "connectors.md").read_text()
    assert "    value: 'bytes' | 'text' | 'json' | 'arrow' | 'avro' = 'json',\n" in connectors
    runs = (REFERENCE / "runs.md").read_text()
    assert "| `max_restarts` | `int` | `3` |" in runs
    assert "- **epoch** (`int | None`, default `None`): " in runs


def test_every_error_has_a_meaning_a_fix_and_an_exit_code() -> None:
    classes = [kind.__name__ for kind in api.error_classes()]
    assert set(api.FIXES) == set(classes)
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(#\w+\) \| `\w+` \| (.+) \| (.+) \| (.+) \|$",
        (REFERENCE / "errors.md").read_text(),
        re.MULTILINE,
    )
    assert [row[0] for row in rows] == classes
    assert all(meaning and fix and code[0] in "12" for _, meaning, fix, code in rows)


def test_every_command_is_on_its_page() -> None:
    commands = cli.commands().commands
    in_groups = [name for names in cli.GROUPS.values() for name in names]
    assert sorted(in_groups) == sorted(n for n, c in commands.items() if not c.hidden)
    page = cli.PAGE.read_text()
    for path, command in cli.leaves(cli.commands(), ("everstream",)):
        assert f"# {' '.join(path)}\n" in page
        part = page.partition(f"# {' '.join(path)}\n")[2].partition("\n#")[0]
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                assert f"`{option.opts[0]}`" in part, (path, option.opts)


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


def test_types_and_defaults_come_with_the_parameters_of_a_docstring() -> None:
    given = [api.Parameter("store", "str", "'here'"), api.Parameter("key", "", "")]
    text = as_markdown("store: a folder.\nkey: a file.", given)
    assert text == "- **store** (`str`, default `'here'`): a folder.\n- **key**: a file."


def test_documents_that_the_code_names_are_there() -> None:
    for file in [*(ROOT / "everstream").rglob("*.py"), *(ROOT / "lab").rglob("*.py")]:
        for name in re.findall(r"\bdocs/[\w/-]+\.md", file.read_text()):
            assert (ROOT / name).exists(), f"{file.name} names {name}"


def test_the_page_of_options_is_made_from_their_definition() -> None:
    options = script("options")
    text = options.PAGE.read_text()
    assert options.page(text) == text, "run python scripts/options.py"
    for name in OPTIONS:
        assert f"| `{name}`" in text
