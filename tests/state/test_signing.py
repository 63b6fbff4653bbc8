"""A signed store believes nothing that its key did not sign, under the very name it was signed for."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from everstream.errors import CorruptObject, LeaseLost, StoreError, UserError
from everstream.state.blobs import FsspecBlobs
from everstream.state.manifests import path_of
from everstream.state.signing import HEAD_BYTES, KEY_FILE, Forged, SignedBlobs, StoreKey
from everstream.state.store import CheckpointStore, ObjectRef

WORD = b"planted-key-0123456789abcdef-0123456789"
OTHER = b"another-key-0123456789abcdef-0123456789"


def body(epoch: int, *refs: ObjectRef) -> dict[str, object]:
    return {"epoch": epoch, "objects": [ref.to_json() for ref in refs]}


def filled(url: str, key: StoreKey | None) -> tuple[CheckpointStore, list[ObjectRef]]:
    """Two epochs, with an object each; the slots are a lease, 2 and 3."""
    store = CheckpointStore.at(url, key)
    lease = store.acquire_lease("driver")
    refs = [store.put(f"count-0/{epoch:08d}-aa.ckpt", b"state %d" % epoch) for epoch in (1, 2)]
    for epoch, ref in enumerate(refs, 1):
        store.append_manifest(lease, body(epoch, ref))
    store.note_shown()
    return store, refs


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def key_file(folder: Path, *words: bytes, mode: int = 0o600) -> Path:
    file = folder / "store.key"
    file.write_bytes(b"\n".join([b"# the newest first", *words, b""]))
    file.chmod(mode)
    return file


def test_a_signed_store_gives_back_what_was_put_there(tmp_path: Path) -> None:
    _, refs = filled(str(tmp_path), StoreKey([WORD]))
    again = CheckpointStore.at(str(tmp_path), StoreKey([WORD]))
    assert [again.get(ref) for ref in refs] == [b"state 1", b"state 2"]
    assert [manifest.epoch for manifest in again.manifests()] == [2, 1]
    assert again.skipped == [] and again.all_shown()


def test_any_byte_changed_in_any_signed_file_is_noticed(tmp_path: Path) -> None:
    filled(str(tmp_path), StoreKey([WORD]))
    blobs = SignedBlobs(str(tmp_path), StoreKey([WORD]))
    files = files_of(tmp_path)
    assert {file.split("/")[0] for file in files} == {"manifests", "objects", "copies", "shown"}
    for file in files:
        whole = (tmp_path / file).read_bytes()
        blobs.read(file)
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            (tmp_path / file).write_bytes(damaged)
            with pytest.raises(Forged):
                blobs.read(file)
        for changed in (whole[:-1], whole + b"\n", whole[HEAD_BYTES:], b""):
            (tmp_path / file).write_bytes(changed)
            with pytest.raises(Forged):
                blobs.read(file)
        (tmp_path / file).write_bytes(whole)


def test_a_signed_file_is_believed_under_its_own_name_only(tmp_path: Path) -> None:
    filled(str(tmp_path), StoreKey([WORD]))
    blobs = SignedBlobs(str(tmp_path), StoreKey([WORD]))
    files = files_of(tmp_path)
    held = {file: (tmp_path / file).read_bytes() for file in files}
    for place in files:
        for file in files:
            if file != place:
                (tmp_path / place).write_bytes(held[file])
                with pytest.raises(Forged, match="does not match"):
                    blobs.read(place)
        (tmp_path / place).write_bytes(held[place])


def test_an_old_manifest_put_forward_again_counts_for_nothing(tmp_path: Path) -> None:
    store, _ = filled(str(tmp_path), StoreKey([WORD]))
    shutil.copy(tmp_path / path_of(2), tmp_path / path_of(4))
    again = CheckpointStore.at(str(tmp_path), StoreKey([WORD]))
    assert [manifest.epoch for manifest in again.manifests()] == [2, 1]
    assert [skipped.slot for skipped in again.skipped] == [4]
    # In its own place it is what it always was: older than those that follow.
    old = (tmp_path / path_of(2)).read_bytes()
    (tmp_path / path_of(4)).unlink()
    store.prune(keep=1)
    assert not (tmp_path / path_of(2)).exists()
    (tmp_path / path_of(2)).write_bytes(old)
    again = CheckpointStore.at(str(tmp_path), StoreKey([WORD]))
    assert [manifest.epoch for manifest in again.manifests()] == [2, 1]


def test_that_the_newest_files_are_missing_cannot_be_noticed(tmp_path: Path) -> None:
    """A signature says who wrote something, not that nothing came after it: see SECURITY.md."""
    filled(str(tmp_path), StoreKey([WORD]))
    (tmp_path / path_of(3)).unlink()
    again = CheckpointStore.at(str(tmp_path), StoreKey([WORD]))
    assert [manifest.epoch for manifest in again.manifests()] == [1]


class Canary:
    """Runs code when it is unpickled, as a forged snapshot would."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return (os.mkdir, (str(self.file),))


def test_a_forged_checkpoint_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    """By somebody who can write to the store, knows the format, and does not have the key."""
    url = str(tmp_path / "store")
    _, refs = filled(url, StoreKey([WORD]))
    forger = CheckpointStore(FsspecBlobs(url))
    evil = forger.put("count-0/00000003-bb.ckpt", pickle.dumps(Canary(tmp_path / "ran")))
    blobs = FsspecBlobs(url)
    stolen = blobs.read(f"objects/{refs[1].name}.{refs[1].checksum}")
    for folder in ("objects", "copies"):
        blobs.write(
            f"{folder}/{refs[1].name}.{refs[1].checksum}",
            stolen[:HEAD_BYTES] + pickle.dumps(Canary(tmp_path / "ran")),
        )
    store = CheckpointStore.at(url, StoreKey([WORD]))
    for ref in (evil, refs[1]):
        with pytest.raises(CorruptObject, match=r"is not signed|does not match"):
            pickle.loads(store.get(ref))
    assert not (tmp_path / "ran").exists()
    assert store.get(refs[0]) == b"state 1"


@pytest.mark.parametrize(
    "made_with, opened_with, why",
    [
        ([WORD], None, "is signed"),
        ([WORD], [OTHER], "is signed with another key"),
        (None, [WORD], "is not signed"),
    ],
)
def test_a_store_opened_with_the_wrong_key_or_none_is_refused_with_what_to_do(
    tmp_path: Path, made_with: list[bytes] | None, opened_with: list[bytes] | None, why: str
) -> None:
    filled(str(tmp_path), None if made_with is None else StoreKey(made_with))
    before = files_of(tmp_path)
    store = CheckpointStore.at(
        str(tmp_path), None if opened_with is None else StoreKey(opened_with)
    )
    for act in (store.manifests, store.survey, lambda: store.acquire_lease("another")):
        with pytest.raises(StoreError, match=rf"{why}.*--store-key") as refused:
            act()
        for word in (WORD, OTHER):
            assert word.decode() not in str(refused.value)
    assert files_of(tmp_path) == before


def test_a_new_key_is_taken_up_while_the_old_one_is_still_believed(tmp_path: Path) -> None:
    _, refs = filled(str(tmp_path), StoreKey([WORD]))
    rotated = CheckpointStore.at(str(tmp_path), StoreKey([OTHER, WORD]))
    lease = rotated.acquire_lease("next")
    assert rotated.get(refs[1]) == b"state 2"
    new = rotated.put("count-0/00000003-cc.ckpt", b"state 3")
    rotated.append_manifest(lease, body(3, new))
    only_new = CheckpointStore.at(str(tmp_path), StoreKey([OTHER]))
    assert only_new.get(new) == b"state 3"
    with pytest.raises(CorruptObject, match="another key"):
        only_new.get(refs[1])


def test_a_driver_that_finds_something_forged_in_its_slot_ends(tmp_path: Path) -> None:
    store = CheckpointStore.at(str(tmp_path), StoreKey([WORD]))
    lease = store.acquire_lease("driver")
    FsspecBlobs(str(tmp_path)).create(path_of(2), b"not signed at all")
    with pytest.raises(LeaseLost):
        store.append_manifest(lease, body(1), wait=lambda trouble: pytest.fail(str(trouble)))


def test_a_key_is_nowhere_to_be_seen(tmp_path: Path) -> None:
    key = StoreKey([WORD])
    filled(str(tmp_path), key)
    assert WORD.decode() not in f"{key!r} {key} {vars(key).keys()}"
    for content in (file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()):
        assert WORD not in content
    for carrier in (key, SignedBlobs(str(tmp_path), key), CheckpointStore.at(str(tmp_path), key)):
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(carrier)


def test_a_key_comes_from_a_file_that_only_its_owner_can_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert StoreKey.given(None) is None
    file = key_file(tmp_path, WORD, OTHER)
    assert StoreKey.read(file).words() == [WORD.decode(), OTHER.decode()]
    monkeypatch.setenv(KEY_FILE, str(file))
    found = StoreKey.given(None)
    assert found is not None and found.words() == [WORD.decode(), OTHER.decode()]
    for mode in (0o604, 0o620, 0o666):
        with pytest.raises(UserError, match="chmod 600"):
            StoreKey.read(key_file(tmp_path, WORD, mode=mode))
    for words in ([], [b"short"], [WORD, b"short"]):
        with pytest.raises(UserError, match=r"at least 32 characters .* openssl rand") as refused:
            StoreKey.read(key_file(tmp_path, *words))
        assert WORD.decode() not in str(refused.value)
    with pytest.raises(UserError, match="No such file"):
        StoreKey.read(tmp_path / "none.key")
