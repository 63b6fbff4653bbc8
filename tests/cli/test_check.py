"""CheckpointRequests beforehand whether a changed pipeline would go on: the answer, and its exit code."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import everstream as es
from everstream.cli.app import app
from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.finding import load_pipeline
from everstream.core.checkpointing.manifest import FORMAT
from everstream.core.orders import Outcome
from everstream.engine.spark import slots
from everstream.errors import UserError
from everstream.events import RunStatus
from everstream.state.control import Shards, record_settings
from everstream.state.store import CheckpointStore
from tests.engine.tasks.running import Notes
from tests.spark import MASTER

RECORDS, HALF, KEYS = 6_000, 3_000, 7
PROGRAM = """
import os
import everstream as es
from everstream.connectors import END, Reader

class Gated(es.Source):
    '''Whole numbers, and half of them only while there is no file `gate`.'''
    max_shards = 1

    def open(self, shard, shards):
        return GatedReader()

class GatedReader(Reader):
    offset = 0

    def seek(self, offset):
        self.offset = offset

    def read(self):
        if self.offset == {records}:
            return END
        most = {records} if os.path.exists("{gate}") else {half}
        batch = list(range(self.offset, min(self.offset + 50, most)))
        self.offset += len(batch)
        return batch or None

pipeline = es.Pipeline("counting")
numbers = pipeline.source(Gated(), name="numbers")
counts = numbers.key_by(lambda n: n % {keys}).fold(
    init=int, update=lambda count, _: count + 1, name="{name}", shards=2
)
counts.sink(es.JsonLines("{out}"), name="out")
"""


def program(folder: Path, name: str = "count") -> str:
    path = folder / f"{name}.py"
    path.write_text(
        PROGRAM.format(
            records=RECORDS,
            half=HALF,
            keys=KEYS,
            name=name,
            out=folder / "out",
            gate=folder / "gate",
        )
    )
    return str(path)


def run(target: str, store: Path, **options: Any) -> Any:
    every = es.Coordinated(every="100ms")
    return load_pipeline(target).run(
        master=MASTER, workers=2, store=store, checkpoint=every, **options
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped half way: its program, store and output."""
    folder = tmp_path_factory.mktemp("stopped")

    def half_way(snapshot: RunStatus) -> bool:
        return snapshot.epoch >= 2 and snapshot.records_read == HALF

    result = run(program(folder), folder / "store", until=half_way)
    assert result.outcome is Outcome.STOPPED
    return folder


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)], env={"COLUMNS": "200"})


def test_a_pipeline_fits_its_own_checkpoint(stopped: Path) -> None:
    said = check(program(stopped), "--store", stopped / "store")
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    rows = {name: next(line for line in lines if name in line) for name in ("numbers", "count")}
    assert all("resumes" in row for row in rows.values()), said.output
    assert "Fits: a run resumes" in said.output


def test_a_renamed_operator_would_be_refused_with_the_fix_and_fits_when_it_is_said(
    stopped: Path,
) -> None:
    total = program(stopped, "total")
    said = check(total, "--store", stopped / "store")
    assert said.exit_code == 1
    assert "--renamed count=total" in said.output and "--drop-state count" in said.output
    said = check(total, "--store", stopped / "store", "--renamed", "count=total")
    assert said.exit_code == 0, said.output
    assert "'total' resumes with the state of 'count'" in said.output
    said = check(total, "--store", stopped / "store", "--drop-state", "count")
    assert said.exit_code == 0, said.output
    assert "new: begins with no state" in said.output


def test_shards_that_were_changed_while_a_run_went_on_count_also_after_a_rewind(
    stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped / "store", tmp_path / "store")
    mine, store = program(stopped), tmp_path / "store"
    before = CheckpointStore.at(str(store)).manifests()[0].body["epoch"]
    record_settings(CheckpointStore.at(str(store)).blobs, {}, {"count": Shards(3, 2)})
    would = "'count' resumes with 3 shard(s) instead of 2"
    asked_for = "'count' has 3 shard(s) instead of 2, as requested"
    said = check(mine, "--store", store)
    assert would in said.output and asked_for in said.output and said.exit_code == 0
    notes = Notes()
    run(mine, store, listener=notes, until=lambda snapshot: snapshot.epoch > before)
    assert would in notes.texts, "a run does what was said"
    said = check(mine, "--store", store)
    assert "2 shard(s) instead of 3" not in said.output and would not in said.output
    assert asked_for in said.output and "Fits: a run resumes" in said.output
    shutil.copytree(stopped / "store", store := tmp_path / "again")
    older = min(entry.body["epoch"] for entry in CheckpointStore.at(str(store)).manifests())
    record_settings(CheckpointStore.at(str(store)).blobs, {}, {"count": Shards(3, 2)})
    rewound = CliRunner().invoke(app, ["rewind", str(store), "--to", str(older), "--yes"])
    assert rewound.exit_code == 0, rewound.output
    assert would in check(mine, "--store", store).output


def test_what_cannot_be_read_is_not_called_refused(stopped: Path) -> None:
    mine = program(stopped)
    assert check(stopped / "nowhere.py", "--store", stopped / "store").exit_code == 2
    assert check(mine, "--store", stopped / "nowhere").exit_code == 2
    assert check(mine, "--store", stopped / "store", "--renamed", "count").exit_code == 2
    assert check(mine, "--no-such-option").exit_code == 2


def test_a_changed_pipeline_is_refused_before_spark_starts_and_leaves_the_store_alone(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(slots, "make_context", never)
    before = sorted((stopped / "store").rglob("*"))
    with pytest.raises(UserError, match="--renamed count=total"):
        run(program(stopped, "total"), stopped / "store")
    assert sorted((stopped / "store").rglob("*")) == before


def test_on_spark_renamed_state_goes_on_exactly_and_is_said(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped / "store", tmp_path / "store")
    (stopped / "gate").touch()
    notes = Notes()
    result = run(
        program(stopped, "total"),
        tmp_path / "store",
        renamed={"count": "total"},
        listener=notes,
    )
    assert result.outcome is Outcome.FINISHED
    assert "'total' resumes with the state of 'count'" in notes.texts
    shown = Counter(
        tuple(json.loads(line))
        for part in (stopped / "out").glob("*.jsonl")
        for line in part.open()
    )
    totals = Counter(n % KEYS for n in range(RECORDS))
    assert shown == Counter((key, i + 1) for key, n in totals.items() for i in range(n))


def test_a_manifest_of_a_newer_format_is_refused_with_what_to_do(
    stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped / "store", tmp_path / "store")
    store = CheckpointStore.at(str(tmp_path / "store"))
    body = {**store.manifests()[0].body, "format": FORMAT + 1}
    store.append_manifest(store.acquire_lease("a newer one"), body)
    said = check(program(stopped), "--store", tmp_path / "store")
    assert said.exit_code == 2
    assert f"has format {FORMAT + 1}" in said.output and "written by a newer one" in said.output


def test_a_manifest_of_the_first_format_is_accepted_with_a_note(
    stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped / "store", tmp_path / "store")
    store = CheckpointStore.at(str(tmp_path / "store"))
    body = {**store.manifests()[0].body}
    del body["format"], body["described"]
    body["records"] = [
        {name: value for name, value in record.items() if name not in ("keeps", "aliases")}
        for record in body["records"]
    ]
    store.append_manifest(store.acquire_lease("an older one"), body)
    said = check(program(stopped), "--store", tmp_path / "store")
    assert said.exit_code == 0, said.output
    assert "written by an older Everstream" in said.output


def test_a_driver_that_takes_over_drops_nothing_again() -> None:
    asked = RunCommand("app.py", {"renamed": {"a": "b"}, "drop_state": ["c"]})
    again = RunCommand.from_json(asked.to_json())
    assert again == asked and asked.options.upgrade.drop_state == ["c"]
    assert again.once_started().options.upgrade == es.Upgrade(renamed={"a": "b"})


KEEPING = """
import everstream as es


class Count(es.Operator):
    seen = {declared}

    def process(self, record, ctx):
        {update}
        ctx.emit((ctx.key, {value}))


pipeline = es.Pipeline("keeping")
numbers = pipeline.source(es.Paced(es.Range(6_000, batch=50), rate={rate}), name="numbers")
rows = numbers.map(lambda n: {{"n": n}}, name="rows")
rows.key_by(lambda row: row["n"] % 7).process(Count(), name="count").collect()
rows.key_by(lambda row: row["n"] % 3).aggregate({aggregates}, name="sums").collect(name="other")
"""


def written(folder: Path, name: str, *texts: str) -> str:
    path = folder / f"{name}.py"
    names = ("rate", "declared", "update", "value", "aggregates")
    path.write_text(KEEPING.format(**dict(zip(names, texts, strict=True))))
    return str(path)


def test_what_is_migrated_new_and_dropped_is_said_by_operator_and_done_on_spark(
    tmp_path: Path,
) -> None:
    add, value = "self.seen[ctx.key] += 1", "self.seen[ctx.key]"
    kept = "count=es.count(), last=es.max('n')"
    slowly = "200"  # so that it is stopped long before its end on any machine
    first = written(tmp_path, "first", slowly, "es.Keyed(init=int)", add, value, kept)
    store = tmp_path / "store"
    stopped = run(first, store, until=lambda snapshot: snapshot.epoch >= 1)
    assert stopped.outcome is Outcome.STOPPED
    migrated = (
        "es.Keyed(init=lambda: dict(n=0), version=2, migrate=lambda had, version: dict(n=had))"
    )
    add, value = "self.seen[ctx.key]['n'] += 1", "self.seen[ctx.key]['n']"
    kept = "count=es.count(), mean=es.avg('n')"
    second = written(tmp_path, "second", "6_000", migrated, add, value, kept)
    said = check(second, "--store", store)
    assert said.exit_code == 0, said.output
    for words in (
        "resumes; 'seen' is migrated from version 1 to 2",
        "mean=average(n) is new: begins empty",
        "last=max(n) is dropped",
        "'count': 'seen' is migrated",
        "Fits: a run resumes",
    ):
        assert words in said.output
    notes = Notes()
    result = run(second, store, listener=notes)
    assert result.outcome is Outcome.FINISHED
    assert "'sums': last=max(n) is dropped" in notes.texts
    totals = Counter(n % KEYS for n in range(RECORDS))
    assert Counter(result.collected()) == Counter(
        (key, i + 1) for key, n in totals.items() for i in range(n)
    )
    last = {row["key"]: row["count"] for row in result.collected("other")}
    assert last == dict.fromkeys(range(3), RECORDS // 3)
    assert result.collected("other")[-1]["mean"] is not None
