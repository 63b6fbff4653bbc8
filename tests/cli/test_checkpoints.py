"""Looking into stores and going back in them, by command: on copies of what real runs left."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner, Result

import everstream as es
from everstream.cli.app import app
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.orders import Outcome
from everstream.errors import StoreError, UserError
from everstream.inspection import checkpoints, read_state, rewind
from everstream.pipeline.sink import Delivery, SinkShard, Writer
from everstream.state.blobs import FsspecBlobs
from everstream.state.heartbeat import HEARTBEAT
from everstream.state.manifests import entry_of
from everstream.state.store import CheckpointStore
from everstream.state.store_lock import held
from tests.spark import MASTER

RECORDS = 30_000
KEYS = 7


def counting(folder: Path, rate: float = 15_000) -> es.Pipeline:
    pipeline = es.Pipeline("counting")
    numbers = pipeline.source(es.Paced(es.Range(RECORDS, batch=50), rate=rate), name="numbers")
    counts = numbers.key_by(lambda n: n % KEYS).fold(
        init=int, update=lambda count, _: count + 1, name="count", shards=2
    )
    counts.sink(es.JsonLines(str(folder / "out")), name="out")
    return pipeline


def run(folder: Path, rate: float = 15_000, **options: Any) -> Any:
    return counting(folder, rate).run(
        master=MASTER,
        workers=2,
        store=folder / "store",
        checkpoint=es.Coordinated(every="100ms"),
        **options,
    )


def run_some_epochs(folder: Path) -> None:
    """So slowly that it is stopped long before its end on any machine."""
    result = run(folder, rate=500, until=lambda snapshot: snapshot.epoch >= 4)
    assert result.outcome is Outcome.STOPPED


def output(folder: Path) -> Counter[tuple[int, int]]:
    parts = (folder / "out").glob("*.jsonl")
    return Counter(tuple(json.loads(line)) for part in parts for line in part.open())


def expected() -> Counter[tuple[int, int]]:
    totals = Counter(n % KEYS for n in range(RECORDS))
    return Counter((key, i + 1) for key, total in totals.items() for i in range(total))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with store and output of a run that was stopped after some epochs."""
    folder = tmp_path_factory.mktemp("stopped")
    run_some_epochs(folder)
    return folder


@pytest.fixture
def store(stopped: Path, tmp_path: Path) -> str:
    """A copy that may be damaged."""
    shutil.copytree(stopped / "store", tmp_path / "copy")
    return str(tmp_path / "copy")


def ask(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"}, **options)


def listed(store: str, *options: str) -> dict[str, Any]:
    said = ask("checkpoints", store, "--json", *options)
    assert said.exit_code == 0, said.output
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def epochs(store: str) -> list[int]:
    return [row["epoch"] for row in listed(store)["checkpoints"]]


def copy_of(path: Path) -> Path:
    return Path(str(path).replace("/objects/", "/copies/"))


def files(store: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(store).rglob("*") if path.is_file()}


def newest_manifest(store: str) -> Path:
    return max(Path(store, "manifests").glob("*.json"))


def objects(store: str, epoch: int) -> set[Path]:
    return {
        Path(store, "objects", f"{ref.name}.{ref.checksum}")
        for manifest in CheckpointStore.at(store).manifests()
        if manifest.body["epoch"] == epoch
        for ref in manifest.objects
    }


# The list.


def test_checkpoints_are_listed_newest_first_with_time_size_and_duration(store: str) -> None:
    found = listed(store)
    rows = found["checkpoints"]
    assert [row["status"] for row in rows] == ["current", "kept", "kept"]
    assert [row["epoch"] for row in rows] == sorted((row["epoch"] for row in rows), reverse=True)
    times = [row["written_at"] for row in rows]
    assert times == sorted(times, reverse=True) and times[-1] > 1_600_000_000
    for row in rows:
        assert row["complete"] and row["duration_s"] > 0 and not row["final"]
        assert row["size_bytes"] == sum(shard["size_bytes"] for shard in row["shards"]) > 0
        assert row["restore_bytes"] >= row["size_bytes"]
    assert found["pipeline"] == "counting"
    assert found["lease"]["owner"].startswith("counting pid ")
    assert found["lease"]["held"] is False, "the run has ended"


def test_the_table_shows_every_shard_and_who_holds_the_lease(store: str) -> None:
    said = ask("checkpoints", store, "--shards")
    assert said.exit_code == 0
    assert "count:0" in said.output and "count:1" in said.output and "numbers:0" in said.output
    assert "Lease 1 was last taken by counting pid " in said.output
    assert "which has ended: the store is free" in said.output
    with held(store, "counting", take_over=False):
        CheckpointStore.at(store).blobs.delete(HEARTBEAT)
        assert "Lease 1 is held by counting pid " in ask("checkpoints", store).output
    assert "which has ended" in ask("checkpoints", store).output, "as after a kill"


def test_a_lease_that_was_taken_on_another_machine_is_not_said_to_be_held_nor_free(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CheckpointStore.at(store).blobs.delete(HEARTBEAT)
    monkeypatch.setattr(checkpoints.socket, "gethostname", lambda: "another-machine")
    said = ask("checkpoints", store)
    assert "whether it still runs is not visible from here" in said.output
    assert listed(store)["lease"]["held"] is None


def test_looking_changes_nothing(store: str) -> None:
    before = files(store)
    assert ask("checkpoints", store, "--verify", "--shards").exit_code == 0
    assert ask("state", store, "--operator", "count").exit_code == 0
    assert files(store) == before


def test_a_torn_manifest_is_listed_with_the_reason(store: str) -> None:
    newest = newest_manifest(store)
    torn_epoch = epochs(store)[0]
    newest.write_bytes(newest.read_bytes()[:-40])
    snapshots, manifest, current, _ = listed(store)["checkpoints"]
    assert (manifest["status"], manifest["complete"]) == ("unreadable", False)
    assert manifest["problems"] == [f"manifests/{newest.name}: it is torn or not a manifest"]
    assert (snapshots["status"], snapshots["epoch"]) == ("unfinished", torn_epoch)
    assert current["status"] == "current" and current["epoch"] < torn_epoch


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (Path.unlink, "it is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "bytes instead of"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
            "its checksum does not match",
        ),
    ],
)
def test_verify_finds_harmed_objects_and_only_those(
    store: str, harm: Callable[[Path], object], problem: str
) -> None:
    current, *others = epochs(store)
    own = objects(store, current).difference(*(objects(store, epoch) for epoch in others))
    harm(min(own))
    assert listed(store, "--verify")["checkpoints"][0]["complete"], "its copy is whole"
    harm(copy_of(min(own)))
    assert listed(store)["checkpoints"][0]["complete"], "not looked at without --verify"
    rows = listed(store, "--verify")["checkpoints"]
    assert [row["complete"] for row in rows] == [False, True, True]
    assert problem in rows[0]["problems"][0]
    assert problem in ask("checkpoints", store, "--verify").output


@pytest.mark.parametrize("which", ["object", "copy"])
def test_one_damaged_copy_is_reported_and_repaired(store: str, which: str) -> None:
    named = min(objects(store, epochs(store)[0]))
    damaged = named if which == "object" else copy_of(named)
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + b"?")
    row = listed(store, "--verify")["checkpoints"][0]
    assert row["complete"] and "its checksum does not match" in row["weaknesses"][0]
    assert "--repair" in ask("checkpoints", store, "--verify").output
    assert damaged.read_bytes() != whole, "looking changes nothing"
    assert "repaired from its copy" in ask("checkpoints", store, "--repair").output
    assert damaged.read_bytes() == whole
    assert listed(store, "--verify")["checkpoints"][0]["weaknesses"] == []


def test_snapshots_without_a_manifest_are_an_unfinished_epoch(store: str) -> None:
    current = epochs(store)[0]
    newest_manifest(store).unlink()
    first, second, *_ = listed(store)["checkpoints"]
    assert (first["epoch"], first["status"]) == (current, "unfinished")
    assert "no complete manifest names it; saved: count:0, count:1" in first["problems"][0]
    assert second["status"] == "current"


# The state.


def test_the_state_of_all_shards_is_what_the_offset_says(store: str) -> None:
    for epoch in epochs(store):
        counts = read_state(store, "count", epoch)
        assert counts.columns == ["shard", "state", "key", "value"]
        assert counts["shard"].n_unique() == 2
        (read,) = (
            record["counts"]["numbers"][1]
            for manifest in CheckpointStore.at(store).manifests()
            if manifest.body["epoch"] == epoch
            for record in manifest.body["records"]
            if "numbers" in record["operators"]
        )
        want = Counter(n % KEYS for n in range(read))
        assert dict(zip(counts["key"], counts["value"], strict=True)) == want


def test_a_source_shows_its_offset_and_a_sink_its_pending_transactions(store: str) -> None:
    (offset,) = read_state(store, "numbers").iter_rows(named=True)
    assert offset["state"] == "offset" and offset["value"] is not None
    tables = {epoch: read_state(store, "out", epoch) for epoch in epochs(store)}
    pending = pl.concat(table for table in tables.values() if len(table))
    assert set(pending["state"]) == {"pending"}
    assert all("PartTransaction" in value for value in pending["value"])
    for epoch, table in tables.items():
        assert all(checkpoint <= epoch for checkpoint in table["key"])


def test_state_is_shown_as_a_table_json_and_csv(store: str, tmp_path: Path) -> None:
    whole = read_state(store, "count")
    table = ask("state", store, "--operator", "count", "--limit", "3").output
    assert f"{KEYS} rows" in table and "the first 3 shown" in table
    said = ask("state", store, "--operator", "count", "--json")
    assert json.loads(said.stdout) == whole.to_dicts()
    file = tmp_path / "state.csv"
    assert ask("state", store, "--operator", "count", "--csv", str(file)).exit_code == 0
    assert pl.read_csv(file).equals(whole)


# Errors.


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["checkpoints", "nowhere"], "there is no store 'nowhere'"),
        (["state", "nowhere", "--operator", "count"], "there is no store 'nowhere'"),
        (["rewind", "nowhere", "--to", "1", "--yes"], "there is no store 'nowhere'"),
        (["checkpoints", "STORE/objects"], "is not a store"),
        (
            ["state", "STORE", "--operator", "cuont"],
            "there is no operator 'cuont' in epoch CURRENT; it has: numbers, count, out.",
        ),
        (["state", "STORE", "--operator", "count", "--epoch", "999"], "the store has: KEPT."),
        (["rewind", "STORE", "--to", "999", "--yes"], "epoch 999 is not in the store"),
        (["rewind", "STORE", "--to", "CURRENT", "--yes"], "is the current one already"),
        (["state", "STORE", "--operator", "count", "--json", "--csv", "x"], "choose one"),
    ],
)
def test_what_is_wrong_is_one_clear_line_and_changes_nothing(
    arguments: list[str], says: str, store: str
) -> None:
    before, kept = files(store), epochs(store)

    def fill(text: str) -> str:
        text = text.replace("STORE", store).replace("CURRENT", str(kept[0]))
        return text.replace("KEPT", ", ".join(map(str, reversed(kept))))

    said = ask(*map(fill, arguments))
    assert said.exit_code == 2
    assert fill(says) in said.stderr and "Traceback" not in said.output
    assert said.stderr.startswith("everstream: ") and said.stderr.count("\n") == 1
    assert files(store) == before


def test_a_store_without_checkpoints_says_so(tmp_path: Path) -> None:
    CheckpointStore.at(str(tmp_path)).acquire_lease("somebody")
    said = ask("checkpoints", str(tmp_path))
    assert said.exit_code == 0 and "No checkpoints yet" in said.output
    for command in (["state", "--operator", "count"], ["rewind", "--to", "1", "--yes"]):
        said = ask(command[0], str(tmp_path), *command[1:])
        assert said.exit_code == 2 and "no checkpoint yet" in said.stderr


@pytest.mark.parametrize("command", ["checkpoints", "state", "rewind"])
def test_help_teaches_with_an_example(command: str) -> None:
    said = ask(command, "--help")
    assert said.exit_code == 0
    assert f"Example: everstream {command} " in said.output and "Exit codes: 0" in said.output


# Going back.


def test_rewind_asks_first(store: str) -> None:
    before, oldest = files(store), epochs(store)[-1]
    said = ask("rewind", store, "--to", str(oldest), input="n\n")
    assert said.exit_code == 1 and f"to epoch {oldest} of pipeline 'counting'" in said.output
    assert files(store) == before
    assert ask("rewind", store, "--to", str(oldest), input="y\n").exit_code == 0
    assert listed(store)["checkpoints"][0]["epoch"] == oldest


def test_a_rewind_can_be_undone_until_a_run_begins(store: str) -> None:
    current, middle, _ = epochs(store)
    before = CheckpointStore.at(store).manifests()[0].body
    assert ask("rewind", store, "--to", str(middle), "--yes").exit_code == 0
    found = listed(store)
    assert found["checkpoints"][0]["epoch"] == middle
    assert found["lease"]["owner"].startswith("everstream rewind pid ")
    assert ask("rewind", store, "--to", str(current), "--yes").exit_code == 0
    after = CheckpointStore.at(store).manifests()[0].body
    assert {**after, "written_at": 0} == {**before, "written_at": 0}


def test_epochs_that_a_rewind_gave_up_cannot_be_gone_back_to_once_a_run_has_begun(
    store: str,
) -> None:
    current, middle, oldest = epochs(store)
    assert ask("rewind", store, "--to", str(middle), "--yes").exit_code == 0
    opened = CheckpointStore.at(store)
    opened.sweep(opened.acquire_lease("the next run"))
    assert [(row["epoch"], row["status"]) for row in listed(store)["checkpoints"]] == [
        (middle, "current"),
        (oldest, "kept"),
    ]
    said = ask("rewind", store, "--to", str(current), "--yes")
    assert said.exit_code == 2
    assert f"epoch {current} is not in the store. It can go back to: {oldest}." in said.stderr


def test_a_rewind_behind_messages_in_a_topic_is_refused_and_changes_nothing(store: str) -> None:
    _, _, oldest = epochs(store)
    opened = CheckpointStore.at(store)
    newest = EpochManifest.from_json(opened.manifests()[0].body)
    name, *_ = [n for n, about in (newest.described or {}).items() if "sink" in about]
    about = {"sink": "Kafka", "delivery": "exactly-once", "topic": "orders"}
    opened.append_manifest(
        opened.acquire_lease("a run with a Kafka sink"),
        replace(
            newest, described={**(newest.described or {}), name: about}, irrevocable=None
        ).to_json(),
    )
    before = files(store)
    said = ask("rewind", store, "--to", str(oldest), "--yes")
    assert said.exit_code == 2
    assert f"sink '{name}' has received" in said.stderr and "topic 'orders'" in said.stderr
    assert "Nothing was changed" in said.stderr
    assert files(store) == before


class Letters(es.Sink):
    """A user's sink whose output is permanent."""

    delivery = Delivery.EXACTLY_ONCE

    def __init__(self, folder: Path) -> None:
        self._letters = es.JsonLines(str(folder))

    def open(self, who: SinkShard) -> Writer:
        return self._letters.open(who)

    def irrevocable(self) -> str:
        return "a letter that was posted cannot be called back."


class Parcels(Letters):
    """One that is asked only when a run begins."""

    def irrevocable(self) -> None:  # type: ignore[override]
        return None

    def check_resume(
        self, pipeline: str, operator: str, store: str, checkpoints: Mapping[int, int]
    ) -> None:
        if (Path(store) / "sent").exists():
            raise UserError("a parcel was sent since, and cannot be called back")


def posting(folder: Path, sink: es.Sink, **options: Any) -> Any:
    pipeline = es.Pipeline("posting")
    numbers = pipeline.source(es.Paced(es.Range(RECORDS, batch=50), rate=500), name="numbers")
    numbers.sink(es.JsonLines(str(folder / "copies")), name="copies")
    numbers.sink(sink, name="post")
    return pipeline.run(
        master=MASTER,
        workers=2,
        store=folder / "store",
        checkpoint=es.Coordinated(every="100ms"),
        **options,
    )


def test_a_rewind_behind_the_output_of_a_users_irrevocable_sink_is_refused_with_its_reason(
    tmp_path: Path,
) -> None:
    posting(tmp_path, Letters(tmp_path / "post"), until=lambda status: status.epoch >= 4)
    store = str(tmp_path / "store")
    *_, oldest = epochs(store)
    before = files(store)
    said = ask("rewind", store, "--to", str(oldest), "--yes")
    assert said.exit_code == 2
    assert "sink 'post' has received" in said.stderr
    assert "stays: a letter that was posted cannot be called back. A run" in said.stderr
    assert files(store) == before
    with pytest.raises(UserError, match="cannot be called back"):
        rewind(CheckpointStore.at(store), oldest, owner="by hand", now=0.0)
    assert files(store) == before


def test_a_sink_that_refuses_after_a_rewind_is_asked_before_any_other_gives_something_up(
    tmp_path: Path,
) -> None:
    sink = Parcels(tmp_path / "post")
    posting(tmp_path, sink, until=lambda status: status.epoch >= 4)
    store = str(tmp_path / "store")
    current, *_, oldest = epochs(store)
    shown = files(str(tmp_path / "copies")) | files(str(tmp_path / "post"))
    assert ask("rewind", store, "--to", str(oldest), "--yes").exit_code == 0
    (tmp_path / "store" / "sent").touch()
    with pytest.raises(UserError, match="a parcel was sent since"):
        posting(tmp_path, sink)
    assert files(str(tmp_path / "copies")) | files(str(tmp_path / "post")) == shown
    assert ask("rewind", store, "--to", str(current), "--yes").exit_code == 0
    assert listed(store)["checkpoints"][0]["epoch"] == current


def test_rewind_waits_and_says_so_until_it_knows_whether_it_went_through(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = FsspecBlobs.create

    def loses_answers(self: FsspecBlobs, path: str, data: bytes) -> None:
        create(self, path, data)
        if entry_of(0, data).kind == "checkpoint":
            raise StoreError("the connection broke")

    monkeypatch.setattr(FsspecBlobs, "create", loses_answers)
    oldest = epochs(store)[-1]
    said = ask("rewind", store, "--to", str(oldest), "--yes")
    assert said.exit_code == 0 and epochs(store)[0] == oldest
    assert "It is not known yet whether the write succeeded: the connection broke" in said.stderr


def test_rewind_refuses_a_damaged_checkpoint_and_fences_nobody(store: str) -> None:
    oldest = epochs(store)[-1]
    min(objects(store, oldest)).unlink()
    copy_of(min(objects(store, oldest))).unlink()
    before = files(store)
    said = ask("rewind", store, "--to", str(oldest), "--yes")
    assert said.exit_code == 1 and "it is missing" in said.stderr
    assert files(store) == before


def test_after_a_rewind_the_next_run_takes_output_back_and_ends_exact(tmp_path: Path) -> None:
    run_some_epochs(tmp_path)
    store = str(tmp_path / "store")
    oldest, shown = epochs(store)[-1], output(tmp_path)
    parts = set((tmp_path / "out").glob("*.jsonl"))
    assert ask("rewind", store, "--to", str(oldest), "--yes").exit_code == 0
    assert set((tmp_path / "out").glob("*.jsonl")) == parts, "the next run does that, not rewind"
    result = run(tmp_path)
    assert result.outcome is Outcome.FINISHED and result.resumed_from == oldest
    assert shown < expected() and output(tmp_path) == expected()


def test_a_finished_run_can_be_rewound_and_run_again(tmp_path: Path) -> None:
    assert run(tmp_path).outcome is Outcome.FINISHED
    store = str(tmp_path / "store")
    newest, *_, oldest = listed(store, "--verify")["checkpoints"]
    assert newest["final"] and newest["complete"]
    assert ask("rewind", store, "--to", str(oldest["epoch"]), "--yes").exit_code == 0
    result = run(tmp_path)
    assert result.outcome is Outcome.FINISHED and result.resumed_from == oldest["epoch"]
    assert output(tmp_path) == expected()
