"""Runs that end when they have caught up: everything there is, then what is new, each exactly once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.orders import Outcome
from everstream.engine.spark import slots
from everstream.errors import UserError
from tests.engine.tasks.running import MASTER, Notes
from tests.engines import on_all_engines, on_all_engines_at_length

KEYS = 7


def add(folder: Path, name: str, first: int, count: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{n}\n" for n in range(first, first + count)))


def sums(folder: Path) -> es.Pipeline:
    """A running sum per key, a line whenever it changes by a record: each of them counts."""
    pipeline = es.Pipeline("sums")
    (
        pipeline.source(es.TextLines(folder / "in", batch_bytes=200), name="lines", shards=2)
        .map(int)
        .key_by(lambda n: n % KEYS)
        .fold(init=int, update=lambda total, n: total + n, name="sum", shards=2)
        .sink(es.JsonLines(f"{folder}/out/"), name="out")
    )
    return pipeline


def shown(folder: Path) -> Counter[int]:
    """How many sums each key has shown, and the last of them."""
    found: Counter[int] = Counter()
    for part in (folder / "out").glob("*.jsonl"):
        for line in part.read_text().splitlines():
            key, total = json.loads(line)
            found[key] = max(found[key], total)
    return found


def expected(total: int) -> Counter[int]:
    return Counter({key: sum(range(key, total, KEYS)) for key in range(KEYS)})


def catch_up(folder: Path, **more: Any) -> es.RunResult:
    notes = Notes()
    options = {"store": folder / "store", "master": MASTER, "until": "caught-up", **more}
    return sums(folder).run(listener=notes, **options)


def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("Spark was about to start")

    monkeypatch.setattr(slots, "make_context", refuse)


@on_all_engines
def test_each_run_processes_what_is_new_and_one_without_anything_new_starts_no_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path / "in", "a.txt", 0, 300)
    first = catch_up(tmp_path)
    assert first.outcome is Outcome.CAUGHT_UP and first.records_in == 300
    assert shown(tmp_path) == expected(300)
    add(tmp_path / "in", "b.txt", 300, 300)
    second = catch_up(tmp_path)
    assert second.outcome is Outcome.CAUGHT_UP and second.records_in == 600
    assert second.resumed_from == first.checkpoints[-1].epoch
    assert shown(tmp_path) == expected(600)
    no_spark(monkeypatch)
    third = catch_up(tmp_path)
    assert third.outcome is Outcome.CAUGHT_UP and third.records_in == 600
    assert any("nothing to do: there is no new input" in note for note in third.notes)
    (tmp_path / "in" / "b.txt").open("a").write("1\n")
    grown = catch_up(tmp_path)
    assert any("grown since it was read" in note and "b.txt" in note for note in grown.notes)


@on_all_engines_at_length
def test_a_run_that_loses_processes_on_its_way_is_exact_and_so_is_the_next(tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", 0, 20_000)
    often = es.Coordinated(every="100ms")
    kills = ["sum@2000", "lines:1@3000", "sum:1@after-snapshot"]
    first = catch_up(tmp_path, checkpoint=often, kill=kills, max_restarts=50)
    assert first.outcome is Outcome.CAUGHT_UP and first.recovery_count > 0
    assert first.records_in == 20_000 and shown(tmp_path) == expected(20_000)
    add(tmp_path / "in", "b.txt", 20_000, 1_000)
    second = catch_up(tmp_path, checkpoint=often, kill=["sum@after-prepare"], max_restarts=50)
    assert second.records_in == 21_000 and shown(tmp_path) == expected(21_000)


@pytest.mark.parametrize(
    "checkpoint",
    [
        es.Coordinated(every="100ms", mode="unaligned"),
        es.Uncoordinated(every="100ms"),
        es.CommunicationInduced(every="100ms"),
    ],
)
def test_all_that_was_read_is_shown_at_the_end_under_every_protocol(
    tmp_path: Path, checkpoint: Any
) -> None:
    for n, total in enumerate((3_000, 4_000)):
        add(tmp_path / "in", f"{n}.txt", 3_000 * n, total - 3_000 * n)
        result = catch_up(tmp_path, checkpoint=checkpoint, kill=["sum@700"], max_restarts=50)
        assert result.outcome is Outcome.CAUGHT_UP
        assert result.records_in == total and shown(tmp_path) == expected(total)


@on_all_engines_at_length
def test_windows_stay_open_for_what_the_next_run_reads(tmp_path: Path) -> None:
    def windowed() -> es.Pipeline:
        pipeline = es.Pipeline("windowed")
        (
            pipeline.source(es.JsonLines(tmp_path / "in", follow=True), name="events")
            .event_time(lambda event: event["at"], unit="s")
            .key_by(lambda event: "all")
            .window(es.Tumbling("10s"))
            .aggregate(count=es.count())
            .sink(es.JsonLines(f"{tmp_path}/out/"))
        )
        return pipeline

    (tmp_path / "in").mkdir()
    for name, times in {"a": range(15), "b": range(15, 35)}.items():
        lines = "".join(json.dumps({"at": at}) + "\n" for at in times)
        (tmp_path / "in" / f"{name}.jsonl").write_text(lines)
        windowed().run(store=tmp_path / "store", master=MASTER, until="caught-up", listener=Notes())
    lines = [
        json.loads(line)["count"]
        for part in (tmp_path / "out").glob("*.jsonl")
        for line in part.read_text().splitlines()
    ]
    assert lines == [10, 10, 10], "the second window has records of both runs"


def test_a_finished_store_says_that_there_is_new_input_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path / "in", "a.txt", 0, 100)
    assert catch_up(tmp_path, until=None).outcome is Outcome.FINISHED
    no_spark(monkeypatch)
    same = catch_up(tmp_path, until=None)
    assert same.outcome is Outcome.FINISHED and "nothing to do" in same.notes[0]
    assert len(same.notes) == 1
    add(tmp_path / "in", "b.txt", 100, 100)
    notes = Notes()
    again = sums(tmp_path).run(store=tmp_path / "store", master=MASTER, listener=notes)
    assert again.outcome is Outcome.FINISHED and again.records_in == 100
    assert notes.texts == again.notes
    assert "'lines' has new input (new '" in again.notes[1] and "b.txt" in again.notes[1]
    assert "until='caught-up'" in again.notes[1]
    with pytest.raises(UserError, match=r"has new input .*b\.txt.* --fresh"):
        catch_up(tmp_path)


def test_a_stop_during_a_run_that_catches_up_is_a_stop(tmp_path: Path) -> None:
    add(tmp_path / "in", "a.txt", 0, 20_000)
    pipeline = es.Pipeline("slow")
    slow = es.Paced(es.TextLines(tmp_path / "in", batch_bytes=50), rate=1_000)
    pipeline.source(slow).collect()
    notes = Notes()
    run = pipeline.start(store=tmp_path / "store", master=MASTER, until="caught-up", listener=notes)
    run.stop()
    assert run.wait().outcome is Outcome.STOPPED


def test_what_a_run_that_catches_up_needs_is_said_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_spark(monkeypatch)
    add(tmp_path / "in", "a.txt", 0, 10)
    with pytest.raises(UserError, match="ends with a checkpoint"):
        catch_up(tmp_path, checkpoint=None)
    with pytest.raises(UserError, match="until='caughtup': use until='caught-up'"):
        catch_up(tmp_path, until="caughtup")
    endless = es.Pipeline("endless")
    endless.source(es.FromFunction(lambda start, stop: list(range(start, stop)))).collect()
    with pytest.raises(UserError, match="endless without total="):
        endless.run(master=MASTER, until="caught-up", listener=Notes())
