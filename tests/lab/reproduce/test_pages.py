"""Verdicts from made-up measurements, the pages that show them, and the command."""

import re
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream_lab.reproduce import inventory as inventories
from everstream_lab.reproduce.exhibit import Found, Judgement, Statement
from everstream_lab.reproduce.experiments import Effort, found_in
from everstream_lab.reproduce.inventory import INVENTORY
from everstream_lab.reproduce.machine import describe
from everstream_lab.reproduce.pages import write_pages
from everstream_lab.reproduce.results import Results
from everstream_lab.reproduce.runner import run_missing
from tests.lab.reproduce.tiny import inventory, performed


def found(*values: float) -> Found:
    return Found([{"speed": [("ours", "one", value)]} for value in values])


def speed(one: Found) -> float | None:
    return one.value("speed", "ours", "one")


@pytest.mark.parametrize(
    ("goal", "ours", "expected"),
    [
        ("near", 11.0, Judgement.REPRODUCED),
        ("near", 13.0, Judgement.NOT),
        ("at least", 10.5, Judgement.REPRODUCED),
        ("at least", 20.0, Judgement.BETTER),
        ("at least", 9.9, Judgement.NOT),
        ("at most", 9.5, Judgement.REPRODUCED),
        ("at most", 5.0, Judgement.BETTER),
        ("at most", 10.1, Judgement.NOT),
    ],
)
def test_a_statement_comes_to_one_of_three(goal: str, ours: float, expected: Judgement) -> None:
    one = Statement("it", 10.0, speed, goal, because="b", otherwise="o")  # type: ignore[arg-type]
    assert one.judge(found(ours)).judgement is expected


def test_a_sentence_has_both_numbers_and_an_interval_where_there_are_repetitions() -> None:
    one = Statement("the speed", 10.0, speed, unit=" m/s")
    assert one.judge(found(9, 10, 11)).sentence == (
        "reproduced: the speed is 10 ± 2.48 m/s here, 10 m/s in the paper."
    )
    assert one.judge(found(10)).sentence.endswith("is 10 m/s here, 10 m/s in the paper.")
    better = Statement("it", 10.0, speed, "at least", because="we can")
    assert better.judge(found(30)).sentence.startswith("better, because we can: it is 30 here")
    silent = Statement("it", 10.0, speed, "at least", because=lambda found: None)
    assert silent.judge(found(30)).sentence.startswith("better, not explained: it is 30 here")
    worse = Statement("it", 10.0, speed, otherwise="we cannot")
    assert worse.judge(found(30)).sentence.startswith(
        "not reproducible, because we cannot: it is 30"
    )
    unsure = better.judge(found(2, 30, 70))
    assert unsure.judgement is Judgement.REPRODUCED  # the interval does not rule out less than 10
    cost = Statement("it", 5.0, speed, "at most", because="we can", least=-5.0)
    assert "because the runs that are compared differ by more" in cost.judge(found(-80)).sentence
    assert cost.judge(found(-80)).judgement is Judgement.NOT
    assert one.judge(Found([])).sentence.startswith("not measured: the speed, 10 m/s in the paper")


def test_a_reason_is_worked_out_of_what_was_measured_or_there_is_none() -> None:
    def why(one: Found) -> str | None:
        measured = speed(one)
        return None if measured is None or measured < 20 else f"it came to {measured:g}"

    one = Statement("it", 10.0, speed, otherwise=why)
    assert one.judge(found(30)).sentence.startswith(
        "not reproducible, because it came to 30: it is 30 here"
    )
    assert one.judge(found(15)).sentence.startswith("not reproducible, not explained: it is 15")
    plain = Statement("it", 10.0, speed)
    assert plain.judge(found(15)).sentence.startswith("not reproducible, not explained: it is 15")


def test_reaching_a_bound_is_better_than_what_a_paper_has_in_words() -> None:
    one = Statement("it", None, speed, "at most", 2.0, in_words="endless", because="it ends")
    assert (
        one.judge(found(1)).sentence
        == "better, because it ends: it is 1 here, endless in the paper."
    )
    assert one.judge(found(3)).judgement is Judgement.NOT


def test_steps_of_one_repetition_are_put_together_and_repetitions_kept_apart() -> None:
    both = found_in([
        (0, {"a": [("x", 1, 2.0)]}),
        (1, {"a": [("x", 1, 4.0)]}),
        (0, {"a": [("y", 1, 5.0)]}),
    ])  # fmt: skip
    assert both.value("a", "x", 1) == 3.0 and both.value("a", "y", 1) == 5.0
    assert [one.value("a", "x", 1) for one in both.apart()] == [2.0, 4.0]
    joined = Found.together([both, Found([{"a": [("z", 1, 1.0)]}])])
    assert set(joined.curves("a")) == {"x", "y", "z"} and len(joined.apart()) == 2


def test_pages_list_every_exhibit_with_its_verdict_and_show_ours_beside_theirs(
    tmp_path: Path,
) -> None:
    tiny, results = inventory(tmp_path), Results(tmp_path / "results", Effort(quick=True))
    index, page = write_pages(tiny, results, tmp_path / "out")
    assert "3 steps of its experiments have no result yet" in page.read_text()
    assert "5 not measured" in index.read_text() and "Nothing is measured yet" in page.read_text()
    run_missing(tiny.experiments, results)
    write_pages(tiny, results, tmp_path / "out")
    text = index.read_text()
    assert (
        "| [table 1](tiny.md#table-1) | how fast it is "
        "| `everstream reproduce tiny --only tiny-speed` | 1 reproduced, 1 better, 1 not reproducible, 1 not measured |"
    ) in text
    only = "`everstream reproduce tiny --only tiny-speed`"
    assert f"| [figure 2](tiny.md#figure-2) | twice as fast | {only} | 1 reproduced |" in text
    assert describe() in text and date.today().isoformat() in text
    assert "figure 1 is a drawing" in text
    body = page.read_text()
    assert (
        "- better, because it is tiny: the least speed is 11 ± 2.48 here, 5 in the paper." in body
    )
    assert "| ours | one | 11 ± 2.48 |  | 1 |  |" in body
    assert "| theirs | one |  | 11 |  | 0.5 |" in body
    [picture] = (tmp_path / "out" / "tiny").glob("*.png")
    assert f"(tiny/{picture.name})" in body and picture.stat().st_size > 3_000


def test_the_command_shows_progress_writes_pages_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventories, "INVENTORY", inventory(tmp_path))
    command = ["reproduce", "tiny", "--quick", "--out", str(tmp_path / "out")]
    (tmp_path / "fail-1").touch()
    failed = CliRunner().invoke(app, command)
    assert failed.exit_code == 1 and "as it was told" in failed.output
    assert "2/3" in failed.output and "remain" in failed.output
    (tmp_path / "fail-1").unlink()
    assert CliRunner().invoke(app, command).exit_code == 0
    assert performed(tmp_path) == [0, 1, 2, 1]
    assert "table 1" in (tmp_path / "out" / "index.md").read_text()
    listed = CliRunner().invoke(app, [*command, "--list"])
    assert "tiny-speed" in listed.output and performed(tmp_path) == [0, 1, 2, 1]
    again = CliRunner().invoke(app, [*command, "--fresh", "--only", "tiny-speed"])
    assert again.exit_code == 0 and performed(tmp_path)[4:] == [0, 1, 2]
    elsewhere = tmp_path / "elsewhere"
    shown = CliRunner().invoke(
        app,
        ["reproduce", "tiny", "--quick", "--pages", "--out", str(elsewhere), "--results",
         str(tmp_path / "out" / "results")],
    )  # fmt: skip
    assert shown.exit_code == 0 and len(performed(tmp_path)) == 7
    assert "11 ± 2.48" in (elsewhere / "tiny.md").read_text()
    assert not (elsewhere / "results").exists()


def test_pages_fit_the_documentation_and_every_command_and_link_in_them_exists(
    tmp_path: Path,
) -> None:
    write_pages(INVENTORY, Results(tmp_path / "results", Effort()), tmp_path)
    names = {one.name for one in INVENTORY.experiments}
    headings: dict[str, set[str]] = {}
    for page in sorted(tmp_path.glob("*.md")):
        text = page.read_text()
        assert text.startswith("---\nkind: explanation\n---\n# ")
        assert "\nThis page " in text
        titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
        headings[page.name] = {one.lower().replace(".", "").replace(" ", "-") for one in titles}
    index = (tmp_path / "index.md").read_text()
    rows = re.findall(r"^\| \[.+\]\((.+)#(.+)\) \| .+ \| `(.+)` \| (.*) \|$", index, re.MULTILINE)
    assert len(rows) == len(INVENTORY.exhibits)
    for page_name, anchor, command, verdict in rows:
        assert anchor in headings[page_name]
        assert set(re.findall(r"--only (\S+)", command)) <= names
        assert "not measured" in verdict
