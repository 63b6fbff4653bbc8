"""What a script shows of its run: lines with the time, rarer and rarer, and none while nothing comes."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import everstream as es
from everstream.core.orders import Phase
from everstream.engine.reporting.listener import Listener, Listeners
from everstream.engine.reporting.progress import LinePace, watching
from everstream.engine.settings.configuration import in_force
from everstream.engine.settings.options import RunConfig
from everstream.events import Note, Progressed, RunStatus
from tests.observability.history import telling

from .running import Notes, run


def snapshot(records: int, phase: Phase = Phase.RUNNING, epoch: int = 1) -> RunStatus:
    return RunStatus(phase, 1, records, {}, epoch, [])


def test_a_run_that_stands_still_says_so_once() -> None:
    pace = LinePace()
    assert pace.is_due(snapshot(5), 0.0)
    assert not any(pace.is_due(snapshot(5, epoch=n), float(n)) for n in range(1, 1000))
    assert pace.is_due(snapshot(5, Phase.RESTORING), 1000.5), "a new phase is news"


def test_lines_get_rarer_the_longer_a_phase_lasts() -> None:
    pace = LinePace()
    shown = [now for now in range(3600) if pace.is_due(snapshot(now + 1), float(now))]
    assert shown[:3] == [0, 2, 5] and 60 <= len(shown) <= 80
    assert shown[-1] - shown[-2] == 60


def lines(terminal: bool = False) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=200), text


def test_lines_carry_the_time_and_go_where_the_console_is() -> None:
    console, text = lines()
    with watching("shop", Listener(), True, console) as told:
        told.on_event(replace(telling.run(), total_records=2))
        told.on_event(Progressed(snapshot(1)))
        told.on_event(Note("input", "[careful]", True))
    said = text.getvalue().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in said)
    assert [line[20:] for line in said] == [
        "shop: starting",
        "3 operators in 3 shard(s) on 2 worker(s)",
        "running, 1 records, 50%, 0 records/s, epoch 1",
        "! [careful]",
    ]


def test_a_terminal_gets_a_live_line() -> None:
    console, text = lines(terminal=True)
    with watching("shop", Listener(), True, console) as told:
        told.on_event(Progressed(snapshot(7)))
    assert "running, 7 records" in text.getvalue()


@pytest.mark.parametrize(
    ("variable", "options", "shown"),
    [
        ("", {}, True),
        ("0", {}, False),
        ("off", {"progress": True}, True),
        ("", {"progress": False}, False),
        ("", {"listener": Notes()}, False),
        ("", {"listener": Notes(), "progress": True}, True),
    ],
)
def test_progress_is_shown_where_it_is_wanted(
    variable: str, options: dict[str, Any], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTREAM_PROGRESS", variable)
    config = RunConfig.of(in_force(None, options))
    assert config.progress is shown
    with watching("shop", config.listener, config.progress, lines()[0]) as told:
        assert isinstance(told, Listeners) is shown


def test_a_script_shows_how_its_run_goes(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = es.Pipeline("in-a-script")
    pipeline.source(es.Range(3)).collect()
    run(pipeline, workers=1, progress=True)
    said = capsys.readouterr().err
    assert "in-a-script: starting" in said and "1 worker(s)" in said and "done" in said
