"""Settings that are changed while a run goes on: recorded in its store, and known to all workers."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import everstream as es
from everstream.cli.app import app
from everstream.engine.settings.live_settings import Control
from everstream.pipeline.tuning import Tuning, resolved
from everstream.state.blobs import FsspecBlobs
from everstream.state.control import (
    KEPT,
    SLOTS,
    Recorded,
    publish_tunable,
    read_settings,
    read_tunable,
    record_settings,
)
from tests.spark import MASTER

TUNABLE = {"numbers": {"pattern": "50"}, "batch": {"batch": "2", "interval": "off"}}


def test_a_name_alone_is_for_all_that_have_it_and_with_an_operator_for_one() -> None:
    tunable = {"a": {"pattern": "1"}, "b": {"pattern": "2", "batch": "3"}}
    assert resolved({"frequency": "9"}, tunable) == {"a": {"pattern": "9"}, "b": {"pattern": "9"}}
    assert resolved({"b.pattern": "wave,1s,1,2"}, tunable) == {"b": {"pattern": "wave,1,1,2"}}
    assert resolved({"batch": "7"}, tunable) == {"b": {"batch": "7"}}
    with pytest.raises(es.UserError, match="from 1 up"):
        resolved({"batch": "0"}, tunable)
    with pytest.raises(es.UserError, match="nothing in this pipeline"):
        resolved({"batch": "1"}, {})


def test_changes_add_up_and_of_two_at_once_none_is_lost(tmp_path: Path) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    assert read_settings(blobs) == Recorded()
    record_settings(blobs, {"a": {"batch": "1"}})

    class Quicker(FsspecBlobs):
        """Somebody else takes the slot just before."""

        def create(self, path: str, data: bytes) -> None:
            if not blobs.list(path):
                record_settings(blobs, {"b": {"batch": "2"}})
                Quicker.create = FsspecBlobs.create  # type: ignore[method-assign]
            super().create(path, data)

    after = record_settings(Quicker(str(tmp_path)), {"a": {"interval": "1s"}})
    assert after == Recorded(3, {"a": {"batch": "1", "interval": "1s"}, "b": {"batch": "2"}})
    assert read_settings(blobs) == after
    for number in range(5):
        record_settings(blobs, {"a": {"batch": str(number)}})
    assert len(blobs.list(SLOTS)) == KEPT


def test_settings_that_cannot_be_read_are_said_and_stop_nobody(tmp_path: Path) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    blobs.write(f"{SLOTS}00000001.json", b"{torn")
    said: list[str] = []
    control = Control(blobs, False, TUNABLE, said.append)
    assert control.news() is None
    assert len(said) == 1 and "00000001.json" in said[0]


def wait_for(news: Callable[[], Tuning | None]) -> Tuning:
    while (found := news()) is None:
        time.sleep(0.01)
    return found


def test_a_run_hears_of_what_others_set_and_records_what_it_sets_itself(tmp_path: Path) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    record_settings(blobs, {"batch": {"batch": "4"}, "gone": {"batch": "1"}})
    said: list[str] = []
    control = Control(blobs, False, TUNABLE, said.append)
    assert control.news() == Tuning(1, {"batch": {"batch": "4"}}), "before any worker starts"
    assert said == ["tuned, but no longer in this pipeline: gone"]
    control.start()
    try:
        record_settings(blobs, {"numbers": {"pattern": "70"}})
        assert wait_for(control.news).settings["numbers"] == {"pattern": "70"}
        control.tune({"frequency": "80"})
        assert wait_for(control.news).settings["numbers"] == {"pattern": "80"}
        assert read_settings(blobs).settings["numbers"] == {"pattern": "80"}
        assert read_tunable(blobs) == TUNABLE
    finally:
        control.stop()


def tuned(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["tune", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_command_shows_sets_and_resets(tmp_path: Path) -> None:
    store = str(tmp_path)
    code, output = tuned(store)
    assert code == 2 and "nothing can be tuned" in output
    blobs = FsspecBlobs(store)
    publish_tunable(blobs, TUNABLE)
    assert tuned(store, "frequency=500", "batch=10")[0] == 0
    assert read_settings(blobs).settings == {
        "numbers": {"pattern": "500"},
        "batch": {"batch": "10"},
    }
    code, output = tuned(store, "--json")
    assert json.loads(output)["settings"]["batch"] == {"batch": "10", "interval": "off"}
    for wrong, hint in (
        ("frequenzy=1", "frequency"),
        ("batch", "NAME=VALUE"),
        ("batch=x", "from 1"),
    ):
        code, output = tuned(store, wrong)
        assert code == 2 and hint in output, output
    assert tuned(store, "--reset", "batch=5")[0] == 0
    code, output = tuned(store, "--json")
    shown = json.loads(output)["settings"]
    assert shown == {"numbers": {"pattern": "50"}, "batch": {"batch": "5", "interval": "off"}}
    assert tuned(str(tmp_path / "none"))[0] == 2


class Impatient(es.Operator):
    """Wants more at once, and notes what it is told."""

    def process(self, record: int, ctx: es.Context) -> None:
        if record == 3:
            ctx.tune(operator="numbers", frequency=4_000)
        ctx.emit((record, ctx.settings["numbers"]["pattern"]))


def test_an_operator_tunes_its_run_and_the_next_run_goes_on_with_it(tmp_path: Path) -> None:
    """At 2 records a second these runs would take minutes, and the second tunes nothing."""

    def pipeline() -> es.Pipeline:
        made = es.Pipeline("tuned")
        source = es.Paced(es.Range(2_000), 2, catch_up=True)
        made.source(source, name="numbers").on_demand().process(Impatient()).collect()
        return made

    store = tmp_path / "store"
    first = pipeline().run(
        master=MASTER, workers=2, store=store, until=lambda seen: seen.records_read >= 500
    )
    assert any("tuned: numbers.pattern=4000" in note for note in first.notes)
    second = pipeline().run(master=MASTER, workers=2, store=store)
    collected = second.collected()
    assert [record for record, _ in collected] == list(range(2_000))
    assert collected[0][1] == "2" and collected[-1][1] == "4000"
