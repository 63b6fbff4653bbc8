"""What the terminal shows of a run: in place for `everstream run`, and from a store for `everstream top`."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.cli.views.messages import EventReported
from everstream.cli.views.screen import TerminalScreen
from everstream.cli.views.terminal_view import Room, drawn, lasting, short, size
from everstream.observability.history.stored import blob_name, encoded
from tests.observability.history import telling
from tests.observability.ui.views import NOW, VIEWS, View, busy, failing, many


def lines_of(view: View, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    console.print(drawn(view, Room(width, height), now=NOW))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_row_for_each_chain_with_rates_work_and_where_its_records_go() -> None:
    heading, names, *rows = lines_of(busy(), 120, 30)
    assert heading.startswith("word-count  running") and "88.7 k/s in" in heading
    assert names.split() == ["operators", "shards", "in", "out", "work", "goes", "to"]
    assert rows[0].startswith("lines > split") and rows[0].rstrip().endswith("count, alerts")
    assert "back-pressured 73%" in rows[0]
    assert "busy 97%" in rows[1]
    assert rows[-2].startswith("last checkpoint: epoch 60, 1 s ago, took 271 ms")
    assert rows[-1].strip() == "no failures"


def test_the_last_failure_is_told_while_it_is_recovered_from_and_after() -> None:
    shown = lines_of(failing(), 120, 30)
    assert any("count" in line and "1 lost" in line for line in shown)
    assert shown[-1].startswith("recovering: worker 2 was killed (SIGKILL), just now: detected")
    after = lines_of(VIEWS["lines"](), 120, 30)[-1]
    assert "caught up after 1.0 s, 48,211 records replayed" in after


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("width", [66, 80, 110, 200])
@pytest.mark.parametrize("height", [6, 9, 30])
def test_it_never_needs_more_room_than_there_is(name: str, width: int, height: int) -> None:
    shown = lines_of(VIEWS[name](), width, height)
    assert len(shown) <= height
    assert max(len(line.rstrip()) for line in shown) <= width


def test_figures_are_never_cut_where_there_is_little_room() -> None:
    shown = "\n".join(lines_of(busy(), 66, 30))
    assert "82.3 k/s" in shown and "back-pressured 73%" in shown


def test_in_few_lines_those_that_work_hardest_are_shown() -> None:
    shown = lines_of(many(), 100, 6)
    assert any(line.startswith("sessions") for line in shown)
    assert any("less busy" in line for line in shown)


@pytest.mark.parametrize(
    ("room", "fits"), [(Room(66, 8), True), (Room(65, 8), False), (Room(200, 5), False)]
)
def test_too_small_a_terminal_has_no_room_for_it(room: Room, fits: bool) -> None:
    assert room.fits(busy()) is fits


def a_screen(width: int, height: int) -> tuple[TerminalScreen, io.StringIO]:
    written = io.StringIO()
    console = Console(
        file=written, width=width, height=height, force_terminal=True, color_system=None
    )
    screen = TerminalScreen(console)
    screen.sees(busy)
    screen.show(EventReported(replace(telling.run(), total_records=1_000), 0.0))
    return screen, written


def test_a_run_draws_its_graph_in_place() -> None:
    screen, written = a_screen(120, 30)
    with screen:
        screen._live.refresh()
        screen.line("a note")
    assert "lines > split" in written.getvalue() and "a note" in written.getvalue()


def test_a_terminal_that_is_too_small_keeps_the_bar() -> None:
    screen, written = a_screen(50, 30)
    with screen:
        screen._live.refresh()
    assert "lines > split" not in written.getvalue()
    assert "starting" in written.getvalue()


def test_top_shows_what_a_store_knows_of_a_run(tmp_path: Path) -> None:
    store = store_with_history(tmp_path)
    shown = CliRunner().invoke(app, ["top", store, "--once"])
    assert shown.exit_code == 0, shown.output
    assert "numbers" in shown.output and "fold > out" in shown.output
    assert "last checkpoint: epoch 7" in shown.output


def test_top_says_that_there_is_no_such_store(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["top", str(tmp_path / "nowhere")])
    assert shown.exit_code == 2


def store_with_history(folder: Path) -> str:
    """A store in which a run has left its history."""
    place = folder / "store"
    place.mkdir()
    told = [telling.run(), telling.sample(1, 100, 90), telling.checkpoint(2, 7)]
    name = blob_name(telling.START, "a" * 32, 0)
    (place / name).parent.mkdir()
    (place / name).write_bytes(encoded(told))
    return str(place)


def test_figures_are_as_short_as_they_can_be_read() -> None:
    assert [short(value) for value in (0, 0.5, 12, 999, 82_310, 2_400_000)] == [
        "0", "0.5", "12", "999", "82.3 k", "2.4 M"
    ]  # fmt: skip
    assert [lasting(value) for value in (0.0031, 1.046, 95, 3_700)] == [
        "3 ms", "1.0 s", "1 min 35 s", "1 h 1 min"
    ]  # fmt: skip
    assert [size(value) for value in (12, 4_400_000)] == ["12 B", "4.4 MB"]
