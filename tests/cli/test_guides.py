"""`everstream help` shows the pages of the documentation, and helps with a misspelt topic."""

from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from everstream.cli import guides
from everstream.cli.app import app
from everstream.errors import UserError


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docs"
    for name, text in {
        "index.md": "# Home\n",
        "guides/state.md": "# Keep state\n\nIn *memory*.\n",
        "guides/kafka.md": "# Rewind a topic\n",
        "guides/connectors/kafka.md": "# Kafka\n",
        "reference/runs.md": "# Runs\n\n::: everstream.RunHandle\n",
        "decisions/0001.md": "# Why\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(guides, "PLACES", (tmp_path / "nowhere", folder))
    return folder


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["help", *arguments], env={"COLUMNS": "100"})


def test_without_a_topic_the_guides_are_listed_with_their_titles(docs: Path) -> None:
    answer = ask()
    assert answer.exit_code == 0
    assert [line.split() for line in answer.stdout.splitlines()[1:-1]] == [
        ["guides/kafka", "Rewind", "a", "topic"],
        ["state", "Keep", "state"],
        ["connectors/kafka", "Kafka"],
    ]


@pytest.mark.parametrize("topic", ["state", "State", "state.md"])
def test_into_a_pipe_goes_the_markdown(topic: str, docs: Path) -> None:
    answer = ask(topic)
    assert answer.exit_code == 0
    assert answer.stdout == "# Keep state\n\nIn *memory*.\n"


def test_a_terminal_shows_the_text_without_its_markup(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guides, "Console", lambda: Console(force_terminal=True, width=60))
    answer = ask("state")
    assert answer.exit_code == 0
    assert "Keep state" in answer.stdout and "# Keep" not in answer.stdout
    assert "*memory*" not in answer.stdout


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("stat", "there is no guide 'stat'. Did you mean state?"),
        ("conectors/kafka", "there is no guide 'conectors/kafka'. Did you mean connectors/kafka?"),
        ("kafka", "there is no guide 'kafka'. Did you mean connectors/kafka or guides/kafka?"),
        ("qqq", "there is no guide 'qqq'. 'everstream help' lists all guides."),
        ("run", "there is no guide 'run', but a command: everstream run --help"),
    ],
)
def test_an_unknown_topic_is_answered_with_near_ones(topic: str, message: str, docs: Path) -> None:
    answer = ask(topic)
    assert answer.exit_code == 2
    assert message in answer.stderr and answer.stdout == ""


def test_a_checkout_finds_its_own_pages() -> None:
    topics = guides.topics_in(guides.PLACES)
    assert {"protocols", "configuration"} <= topics.keys()
    assert topics["protocols"].read_text().startswith("# ")


def test_an_installation_without_pages_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no guides"):
        guides.topics_in([tmp_path / "nowhere"])
