"""Every page is of one kind, which its front matter names and its folder shows, and is in the navigation."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
FOLDERS = {
    "tutorials": "tutorial",
    "guides": "guide",
    "reference": "reference",
    "explanation": "explanation",
    "decisions": "explanation",
    "evidence": "explanation",
}
SECTIONS = {
    "Tutorials": "tutorial",
    "How-to guides": "guide",
    "Reference": "reference",
    "Explanation": "explanation",
}
FRONT_MATTER = re.compile(r"\A---\n(?:.+\n)*?kind: (\w+)\n(?:.+\n)*?---\n")
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def kind_of(page: str) -> str | None:
    """What a page says it is."""
    found = FRONT_MATTER.match((DOCS / page).read_text())
    return found[1] if found else None


def kind_by_folder(page: str) -> str | None:
    """What a page has to be where it is."""
    if page == "index.md":
        return "explanation"
    return FOLDERS.get(page.partition("/")[0])


def in_navigation() -> dict[str, str]:
    """Page -> the section it is in."""

    def pages(entry: object) -> list[str]:
        match entry:
            case str():
                return [entry]
            case list():
                return [page for some in entry for page in pages(some)]
            case dict():
                return [page for some in entry.values() for page in pages(some)]
        raise AssertionError(f"mkdocs.yml: {entry!r}")

    text = (ROOT / "mkdocs.yml").read_text()
    sections = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    return {
        page: name for entry in sections for name, some in entry.items() for page in pages(some)
    }


def anchors_of(page: Path) -> set[str]:
    """The headings of a page, as a link names them; and the names that it documents."""
    text = FENCED.sub("", page.read_text())
    found: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).lower()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words).strip())
        number = found.get(slug, -1) + 1
        found[slug] = number
        anchors.add(f"{slug}_{number}" if number else slug)
    return anchors | set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))


def test_every_page_says_what_kind_it_is_and_is_where_such_pages_are() -> None:
    wrong = {
        page: f"says {kind_of(page)}, its folder is for {kind_by_folder(page)}"
        for page in PAGES
        if kind_of(page) is None or kind_of(page) != kind_by_folder(page)
    }
    listed = "\n".join(f"docs/{page}: {what}" for page, what in wrong.items())
    assert not wrong, f"give these pages `kind:` in front matter, and a folder:\n{listed}"


def test_the_navigation_has_every_page_once_under_its_kind() -> None:
    shown = in_navigation()
    assert set(shown) == set(PAGES)
    wrong = {
        page: section
        for page, section in shown.items()
        if kind_of(page) is not None and page != "index.md" and SECTIONS[section] != kind_of(page)
    }
    assert not wrong, f"in the navigation under another kind: {wrong}"


@pytest.mark.parametrize("page", [*(f"docs/{page}" for page in PAGES), "README.md"])
def test_links_lead_to_headings_that_are_there(page: str) -> None:
    file = ROOT / page
    for path, anchor in LINK.findall(FENCED.sub("", file.read_text())):
        if path.startswith(("http:", "https:")) or not anchor:
            continue
        target = (file.parent / path) if path else file
        assert target.exists(), f"{page}: {path}"
        assert anchor in anchors_of(target), f"{page}: there is no #{anchor} in {target.name}"


def test_tasks_of_a_newcomer_are_two_clicks_away() -> None:
    """From the landing page, each is behind one link, on a page that speaks of it."""
    links = {
        text.replace("\n", " "): path
        for text, path in re.findall(r"\[([^\]]+)\]\(([^)#]+)", (DOCS / "index.md").read_text())
    }
    tasks = {
        "Keep late records": "side_output",
        "Resume after changing a window": "window",
        "Write exactly-once from Kafka to PostgreSQL": "Postgres",
        "Choose a protocol": "uncoordinated",
        "plan the checkpoint interval": "interval",
        "Read state as a table": "state",
    }
    for task, word in tasks.items():
        assert word in (DOCS / links[task]).read_text(), task
