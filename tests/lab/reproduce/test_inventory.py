"""The inventory against the papers' own tables and figures: none is left out, none made up."""

import re
from pathlib import Path

import pytest

from everstream.errors import UserError
from everstream_lab.reproduce.exhibit import Found
from everstream_lab.reproduce.experiments import Effort
from everstream_lab.reproduce.inventory import INVENTORY
from everstream_lab.reproduce.pages import write_pages
from everstream_lab.reproduce.results import Results


def numbered(kind: str, *places: str) -> set[str]:
    """`figure`, "5.2-5.11" and so on, spelled out."""
    names = set()
    for place in places:
        chapter, _, rest = place.rpartition(".") if "-" not in place else ("", "", place)
        if "-" not in place:
            names.add(f"{kind} {place}")
            continue
        first, last = rest.split("-")
        chapter, _, start = first.rpartition(".")
        stop = last.rpartition(".")[2]
        dot = f"{chapter}." if chapter else ""
        names |= {f"{kind} {dot}{number}" for number in range(int(start), int(stop) + 1)}
    return names


CAPTIONS = {
    "resipipe": numbered("table", "2.1", "3.1-3.4", "4.1-4.2", "5.1-5.3")
    | numbered("figure", "1.1", "2.1-2.12", "4.1-4.4", "5.1-5.21", "6.1-6.6"),
    "ferdis": numbered("table", "1-6") | numbered("figure", "1-30"),
    "spbench": numbered("table", "1") | numbered("figure", "1-16"),
    "queueing": numbered("table", "1-5") | numbered("figure", "1-9"),
    "morphstream": numbered("figure", "1-14"),
}
"""Every caption of the papers."""
DRAWINGS = {
    "resipipe": numbered("table", "2.1", "3.1-3.4", "4.1-4.2")
    | numbered("figure", "1.1", "2.1-2.12", "4.1-4.4", "5.1", "5.12", "5.14", "5.16", "5.18")
    | numbered("figure", "5.20", "6.1-6.4"),
    "ferdis": numbered("table", "1-2") | numbered("figure", "1-21"),
    "spbench": numbered("table", "1") | numbered("figure", "1-5"),
    "queueing": numbered("table", "1") | numbered("figure", "1-5"),
    "morphstream": numbered("figure", "1", "3-8", "10"),
}
"""Those without numbers to measure."""


SECTIONS = {"ferdis": {"section 9.1"}}
"""Experiments that a paper only tells of."""


@pytest.mark.parametrize("paper", CAPTIONS)
def test_every_table_and_figure_with_numbers_is_there_once(paper: str) -> None:
    labels = [one.label for one in INVENTORY.exhibits if one.paper == paper]
    assert len(labels) == len(set(labels))
    whole = {re.sub(r"[a-d]$", "", label) for label in labels}
    assert whole == (CAPTIONS[paper] - DRAWINGS[paper]) | SECTIONS.get(paper, set())


def test_figures_in_parts_have_all_their_parts() -> None:
    labels = {one.label for one in INVENTORY.exhibits if one.paper == "morphstream"}
    parts = {f"figure {number}{part}" for number in (11, 12) for part in "abcd"}
    assert parts | {f"figure 14{part}" for part in "abc"} <= labels


def test_each_has_a_command_and_something_to_say() -> None:
    known = {one.name for one in INVENTORY.experiments}
    assert len(known) == len(INVENTORY.experiments)
    for one in INVENTORY.exhibits:
        assert one.experiments and set(one.experiments) <= known, one.name
        assert one.statements and one.scale, one.name
        assert all(s.printed is not None or s.bound is not None for s in one.statements), one.name
        for statement in one.statements:
            assert statement.otherwise, one.name
            assert not statement.in_words or statement.because, one.name
    used = {name for one in INVENTORY.exhibits for name in one.experiments}
    assert used == known


def test_every_panel_shows_what_its_experiments_measure_under_names_of_its_own() -> None:
    for effort in (Effort(quick=True), Effort()):
        for experiment in INVENTORY.experiments:
            steps = experiment.steps(effort)
            assert len({(one.name, one.repetition) for one in steps}) == len(steps), experiment.name
            assert all(one.about_s > 0 for one in steps)


def test_a_quick_run_is_foreseen_to_take_about_twenty_minutes() -> None:
    quick = Effort(quick=True)
    seconds = sum(step.about_s for one in INVENTORY.experiments for step in one.steps(quick))
    assert 15 * 60 < seconds <= 26 * 60


def test_the_index_has_all_tables_and_figures_with_a_command_each(tmp_path: Path) -> None:
    results = Results(tmp_path / "results", Effort(quick=True))
    index, *pages = write_pages(INVENTORY, results, tmp_path / "out")
    rows = [line.split(" | ") for line in index.read_text().splitlines() if line.startswith("| [")]
    assert len(rows) == len(INVENTORY.exhibits) == 67
    assert sum("section" in label for label, *_ in rows) == 1
    known = {one.name for one in INVENTORY.experiments}
    for (label, title, command, verdict), exhibit in zip(rows, INVENTORY.exhibits, strict=True):
        assert f"[{exhibit.label}]({exhibit.paper}.md#" in label and title == exhibit.title
        words = command.strip("`").split()
        assert words[:3] == ["everstream", "reproduce", exhibit.paper]
        assert {one for one in words[3:] if one != "--only"} <= known
        assert verdict.endswith("not measured |")
    for page, paper in zip(pages, INVENTORY.titles, strict=True):
        headings = re.findall(r"^## (\w+ [\w.]+)$", page.read_text(), re.MULTILINE)
        anchors = {heading.lower().replace(" ", "-").replace(".", "") for heading in headings}
        assert len(anchors) == len(headings)
        linked = {
            re.search(rf"{paper}\.md#([^)]+)", label)[1]  # type: ignore[index]
            for label, *_ in rows if f"({paper}.md#" in label
        }  # fmt: skip
        assert linked == anchors - {"without-numbers"}


def test_reasons_are_facts_or_come_from_the_measurements() -> None:
    """Without measurements those that are worked out say nothing, and none of them fails."""
    nothing = Found([])
    for one in INVENTORY.exhibits:
        for statement in one.statements:
            for why in (statement.because, statement.otherwise):
                if callable(why):
                    assert why(nothing) is None, (one.name, statement.says)


def test_one_paper_can_be_chosen_and_a_wrong_name_is_answered_with_the_right_one() -> None:
    own = INVENTORY.of("queueing")
    assert {one.paper for one in own.exhibits} == {"queueing"}
    assert {one.paper for one in own.experiments} == {"queueing"}
    assert INVENTORY.of("all") is INVENTORY
    with pytest.raises(UserError, match="did you mean 'ferdis'"):
        INVENTORY.of("ferdiss")


def test_the_printed_numbers_of_the_text_are_in_the_inventory() -> None:
    """A sample per paper, as the papers print them."""
    printed = {
        (one.paper, point[2])
        for one in INVENTORY.exhibits
        for points in one.printed.values()
        for point in points
    } | {
        (one.paper, statement.printed) for one in INVENTORY.exhibits for statement in one.statements
    }
    for paper, values in {
        "resipipe": (
            247084.18,
            1548.19,
            67.27,
            100.18,
            20.37,
            0.005025,
            1.33,
            8.17,
            4.26,
            18.44,
            109.46,
            1.84,
            36.06,
            3.09,
        ),
        "ferdis": (39.45, 1180.92, 118.62, 14304.0, 113.0, 249.0, 331 / 130),
        "queueing": (133_000, 1_010_000, 9_500_000, 1.12, 2.21, 1.25 + 1.0, 2.2, 11.6),
        "morphstream": (3.1, 1.7, 1.8, 12.1, 5.4, 30.0, 20.0, 38.0, 35.0, 37.0),
        "spbench": (100.0,),
    }.items():
        for value in values:
            assert any(
                key == paper and known is not None and abs(known - value) < 1e-9 * max(1, value)
                for key, known in printed
            ), (paper, value)
