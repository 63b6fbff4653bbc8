"""On Spark, too, a manifest is in the store or never will be before the run goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

import everstream as es
from everstream.state import CheckpointStore, FsspecBlobs
from everstream.state.manifests import ManifestLog
from tests.engine.tasks.running import Notes, run


def test_a_manifest_whose_put_times_out_is_given_up_for_good_and_the_run_ends_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Callable[[], None]] = []
    create = FsspecBlobs.create

    def times_out(self: FsspecBlobs, path: str, data: bytes) -> None:
        if b'"epoch": 2,' in data:
            late.append(lambda: create(self, path, data))
            raise RuntimeError("no answer, and not even an error of the system")
        create(self, path, data)

    monkeypatch.setattr(FsspecBlobs, "create", times_out)
    pipeline = es.Pipeline("late")
    pipeline.source(es.Paced(es.Range(10_000, batch=50), rate=10_000)).map(abs).collect()
    notes = Notes()
    often = es.Coordinated(every="100ms")
    result = run(pipeline, checkpoint=often, store=tmp_path, listener=notes)
    assert sorted(result.collected()) == list(range(10_000))
    troubles = [note.text for note in notes.of(es.events.Note) if note.topic == "store"]
    assert any("whether the newest manifest is in the store: no answer" in t for t in troubles)
    (failed,) = notes.of(es.events.CheckpointAborted)
    assert failed.epoch == 2 and "RuntimeError: no answer" in failed.reason
    assert 2 not in [manifest.epoch for manifest in result.checkpoints]
    (put,) = late
    with pytest.raises(FileExistsError):
        put()
    store = CheckpointStore.at(str(tmp_path))
    assert store.manifests()[0].body["final"]
    assert "void" in [entry.kind for entry in ManifestLog(store.blobs).entries()]
