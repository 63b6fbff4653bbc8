"""Whatever is kept says in which format it is, and a newer one is refused in words, not as damage."""

import gzip
import io
import json
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from everstream.connectors.files.filesystem import filesystem_of
from everstream.connectors.journal.log import JournalSegment, Log
from everstream.core.checkpointing.manifest import FORMAT as MANIFEST
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.errors import ConnectorError, CorruptObject, StoreError
from everstream.events import Note
from everstream.observability.history.stored import FOLDER, StoredHistory, to_entry
from everstream.observability.history.stored import FORMAT as HISTORY
from everstream.observability.history.stored import encoded as history_blob
from everstream.runtime.message_log import FORMAT as LOG
from everstream.runtime.message_log import decode_segment, encode_segment
from everstream.state.blobs import FsspecBlobs
from everstream.state.control import (
    SLOTS,
    TUNABLE,
    publish_tunable,
    read_settings,
    read_tunable,
    record_settings,
)
from everstream.state.manifests import path_of
from everstream.state.objects import ObjectRef, checksum_of
from everstream.state.savepoints import (
    FIRST,
    import_savepoint,
    savepoint,
    savepoints_in,
    take_savepoint,
)
from everstream.state.signing import Forged, StoreKey
from everstream.state.snapshot import MAGIC, VERSION, ShardState
from everstream.state.store import CheckpointStore
from tests.observability.history.telling import run

NEWER = "written by a newer one"


def entry(**fields: Any) -> bytes:
    """What a slot of the log holds."""
    text = json.dumps({"kind": "lease", "lease": 1, "body": ["me", "id"], **fields}).encode()
    return b'{"checksum": "%s", "entry": %s}\n' % (checksum_of(text).encode(), text)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    made = CheckpointStore.at(str(tmp_path / "store"))
    made.append_manifest(made.acquire_lease("me"), {"epoch": 1, "pipeline": "p", "objects": []})
    return made


def test_an_entry_of_the_log_in_a_newer_format_or_of_an_unknown_kind(
    store: CheckpointStore,
) -> None:
    assert json.loads(store.blobs.read(path_of(1)))["entry"]["format"] == 1
    store.blobs.create(path_of(3), entry())
    assert len(store.manifests()) == 1, "those of the first releases have no number"
    for number, other in enumerate([entry(format=2), entry(kind="other")]):
        store.blobs.create(path_of(4), other)
        with pytest.raises(StoreError, match=NEWER):
            store.manifests()
        with pytest.raises(StoreError, match=NEWER):
            store.acquire_lease(f"another {number}")
        store.blobs.delete(path_of(4))


def test_a_manifest_in_a_newer_format() -> None:
    with pytest.raises(StoreError, match=f"epoch 7 has format {MANIFEST + 1}.*{NEWER}"):
        EpochManifest.from_json({"format": MANIFEST + 1, "epoch": 7})


def test_a_snapshot_in_a_newer_format() -> None:
    data = ShardState().capture({}).encode()
    newer = MAGIC + bytes([VERSION + 1]) + data[len(MAGIC) + 1 :]
    with pytest.raises(StoreError, match=NEWER) as raised:
        ShardState().restore([newer], [ObjectRef.of("count-0/1", newer)])
    assert not isinstance(raised.value, CorruptObject), "nobody falls back because of it"


def test_a_segment_of_a_message_log_in_a_newer_format() -> None:
    data = b"".join(encode_segment([], []))
    assert list(decode_segment(data, [])) == []
    newer = data.replace(b"LOG%d" % LOG, b"LOG%d" % (LOG + 1))
    with pytest.raises(StoreError, match=NEWER) as raised:
        list(decode_segment(newer, []))
    assert not isinstance(raised.value, CorruptObject), "nobody falls back because of it"


def test_a_savepoint_in_a_newer_format(store: CheckpointStore) -> None:
    take_savepoint(store, "kept", now=1.0)
    path = "savepoints/kept/manifest.json"
    fields = json.loads(store.blobs.read(path).partition(b"\n")[2])
    assert fields["format"] == 1
    for number in (None, 1, 2):
        fields["format"] = number
        body = json.dumps({k: v for k, v in fields.items() if v is not None}).encode()
        store.blobs.delete(path)
        store.blobs.create(path, checksum_of(body).encode() + b"\n" + body)
        if number != 2:
            assert savepoint(store, "kept").epoch == 1
    with pytest.raises(StoreError, match=NEWER):
        savepoint(store, "kept")
    with pytest.raises(StoreError, match=NEWER):
        savepoints_in(store)


def test_an_exported_savepoint_in_a_newer_format(store: CheckpointStore, tmp_path: Path) -> None:
    file = tmp_path / "kept.tar"
    head = json.dumps({"format": 2, "name": "kept"}).encode()
    with tarfile.open(file, "w") as archive:
        member = tarfile.TarInfo(FIRST)
        member.size = len(head)
        archive.addfile(member, io.BytesIO(head))
    with pytest.raises(StoreError, match=NEWER):
        import_savepoint(store, file, None, lambda ref: None)


def test_settings_in_a_newer_format(tmp_path: Path) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    settings, tunable = {"numbers": {"batch": "5"}}, {"format": {"batch": "1"}}
    record_settings(blobs, settings)
    publish_tunable(blobs, tunable)
    assert (read_settings(blobs).settings, read_tunable(blobs)) == (settings, tunable)
    blobs.create(f"{SLOTS}00000002.json", json.dumps({"settings": settings}).encode())
    blobs.write(TUNABLE, json.dumps(tunable).encode())
    assert (read_settings(blobs).settings, read_tunable(blobs)) == (settings, tunable)
    newer = json.dumps({"format": 2, "settings": settings, "tunable": tunable}).encode()
    blobs.create(f"{SLOTS}00000003.json", newer)
    blobs.write(TUNABLE, newer)
    for read in (read_settings, read_tunable):
        with pytest.raises(StoreError, match=NEWER):
            read(blobs)


def test_a_part_of_a_history_in_a_newer_format_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    newer = {**to_entry(run()), "format": HISTORY + 1}
    blobs.write(f"{FOLDER}1-a-0.jsonl.gz", history_blob([run()]))
    blobs.write(f"{FOLDER}2-b-0.jsonl.gz", gzip.compress(json.dumps(newer).encode()))
    first, note = StoredHistory(blobs).new_events()
    assert first == run()
    assert isinstance(note, Note) and note.warning and NEWER in note.text


def test_a_frame_of_a_journal_of_an_unknown_kind(tmp_path: Path) -> None:
    fs, folder = filesystem_of(str(tmp_path), None)
    log = Log(fs, folder, "shard-0-of-1")
    file = log.begin(JournalSegment(1, 0))
    whole = log.encoded(JournalSegment(1, 0), 0, [1, 2], None, [])
    log.append(file, whole)
    assert [frame.batch for frame in log.frames(log.segments())] == [[1, 2]]
    body = (9).to_bytes(4, "little") + whole[8:]
    log.append(file, _summed(body))
    file.close()
    with pytest.raises(ConnectorError, match=NEWER):
        list(log.frames(log.segments()))


def _summed(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "little") + body


def test_a_signature_in_a_newer_format_is_not_believed() -> None:
    key = StoreKey([b"x" * 32])
    signed = key.head("a", b"data") + b"data"
    assert key.opened("a", signed) == b"data"
    with pytest.raises(Forged, match="format 2, perhaps by a newer Everstream"):
        key.opened("a", signed.replace(b"signed 1", b"signed 2"))
