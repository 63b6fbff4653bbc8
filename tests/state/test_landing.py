"""Did it land? Every way in which a put into the log can go wrong has one answer, and it stays true."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from everstream.errors import LeaseLost, NotStored, StoreError
from everstream.inspection import look, rewind
from everstream.inspection.checkpoints import CheckpointStatus
from everstream.state import CheckpointStore, FsspecBlobs, Lease, manifest_append
from everstream.state.manifests import ManifestLog, entry_of, path_of

TIMES_OUT, ANSWER_LOST, REFUSED, BREAKS = "times out", "answer lost", "refused", "breaks"


class Troubled(FsspecBlobs):
    """A store in memory. What befalls the next puts into the log stands in a list, first things first."""

    def __init__(self, url: str | None = None) -> None:
        super().__init__(url or f"memory://{uuid.uuid4().hex}")
        self.troubles: list[str] = []
        self.late: list[Callable[[], None]] = []
        """Puts that have timed out and are still on their way."""
        self.unreadable = 0
        """So many reads fail."""

    def create(self, path: str, data: bytes) -> None:
        trouble = self.troubles.pop(0) if self.troubles else ""
        if trouble == REFUSED:
            raise NotStored("no room")
        if trouble == BREAKS:
            raise ValueError("a response nobody understands")
        if trouble == TIMES_OUT:
            self.late.append(lambda: super(Troubled, self).create(path, data))
            raise TimeoutError("no answer")
        super().create(path, data)
        if trouble == ANSWER_LOST:
            raise StoreError("the connection broke")

    def read(self, path: str) -> bytes:
        if self.unreadable:
            self.unreadable -= 1
            raise StoreError("cannot be read now")
        return super().read(path)

    def arrive(self) -> None:
        """What is on its way gets there, unless the name is taken."""
        arriving, self.late = self.late, []
        for put in arriving:
            try:
                put()
            except FileExistsError:
                continue


class Waits:
    """Waiting as it is passed in: counts, and lets something happen meanwhile."""

    def __init__(self, *meanwhile: Callable[[], None]) -> None:
        self.meanwhile = list(meanwhile)
        self.troubles: list[str] = []

    def __call__(self, trouble: Exception) -> None:
        self.troubles.append(str(trouble))
        if self.meanwhile:
            self.meanwhile.pop(0)()


def nothing() -> None:
    """Happens meanwhile."""


def body(epoch: int) -> dict[str, Any]:
    return {"objects": [], "epoch": epoch}


def epochs(store: CheckpointStore) -> list[int]:
    """As another process sees them, newest first."""
    return [manifest.epoch for manifest in CheckpointStore(store.blobs).manifests()]


def kinds(store: CheckpointStore) -> list[str]:
    return [entry.kind for entry in ManifestLog(store.blobs).entries()]


@pytest.fixture
def blobs() -> Troubled:
    return Troubled()


@pytest.fixture
def store(blobs: Troubled) -> CheckpointStore:
    return CheckpointStore(blobs)


@pytest.fixture
def lease(store: CheckpointStore) -> Lease:
    """Of a driver that has made epoch 1 stable; its next slot is 3."""
    taken = store.acquire_lease("driver")
    store.append_manifest(taken, body(1))
    return taken


def test_a_put_that_works_is_not_waited_for(store: CheckpointStore, lease: Lease) -> None:
    waits = Waits()
    assert store.append_manifest(lease, body(2), waits) == 3
    assert waits.troubles == [] and epochs(store) == [2, 1]


def test_a_manifest_whose_answer_got_lost_has_landed(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [ANSWER_LOST]
    waits = Waits()
    assert store.append_manifest(lease, body(2), waits) == 3
    assert waits.troubles == ["the connection broke"]
    assert store.append_manifest(lease, body(3), waits) == 4
    assert epochs(store) == [3, 2, 1]


def test_a_manifest_that_arrives_while_we_wait_has_landed(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT]
    assert store.append_manifest(lease, body(2), Waits(blobs.arrive)) == 3
    assert epochs(store) == [2, 1]


def test_a_manifest_that_was_given_up_never_lands(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT]
    with pytest.raises(StoreError, match="TimeoutError: no answer"):
        store.append_manifest(lease, body(2), Waits())
    assert kinds(store) == ["lease", "checkpoint", "void"]
    blobs.arrive()
    assert epochs(store) == [1]
    assert store.append_manifest(lease, body(3), Waits()) == 4
    assert epochs(store) == [3, 1]


def test_a_void_entry_that_times_out_is_put_again(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT, TIMES_OUT, TIMES_OUT]
    waits = Waits()
    with pytest.raises(StoreError, match="no answer"):
        store.append_manifest(lease, body(2), waits)
    assert len(waits.troubles) == 3
    blobs.arrive()
    assert kinds(store) == ["lease", "checkpoint", "void"]


def test_a_void_entry_of_ours_that_arrived_late_is_as_good(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT, TIMES_OUT]

    def only_the_void_one_arrives() -> None:
        blobs.late.pop()()

    with pytest.raises(StoreError, match="no answer"):
        store.append_manifest(lease, body(2), Waits(nothing, only_the_void_one_arrives))
    blobs.arrive()
    assert kinds(store) == ["lease", "checkpoint", "void"]


def test_a_manifest_that_comes_before_the_void_entry_has_landed(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT, TIMES_OUT]
    assert store.append_manifest(lease, body(2), Waits(nothing, blobs.arrive)) == 3
    assert epochs(store) == [2, 1]


def test_a_void_entry_that_arrives_in_a_pruned_slot_disturbs_nobody(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [ANSWER_LOST, TIMES_OUT]
    store.append_manifest(lease, body(2), Waits())
    store.append_manifest(lease, body(3), Waits())
    store.prune(1)
    blobs.arrive()
    assert kinds(store) == ["lease", "void", "checkpoint"]
    assert store.append_manifest(lease, body(4), Waits()) == 5
    store.prune(1)
    assert epochs(store) == [4]


def test_what_was_refused_is_known_at_once_and_leaves_its_slot_free(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [REFUSED]
    waits = Waits()
    with pytest.raises(NotStored, match="no room"):
        store.append_manifest(lease, body(2), waits)
    assert waits.troubles == []
    assert store.append_manifest(lease, body(3), waits) == 3


def test_a_void_entry_that_is_refused_is_put_again(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT, REFUSED, REFUSED]
    waits = Waits()
    with pytest.raises(StoreError, match="no answer"):
        store.append_manifest(lease, body(2), waits)
    assert waits.troubles == ["no answer", "no room", "no room"]


def test_any_exception_of_a_store_means_that_nobody_knows(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [BREAKS, BREAKS]
    with pytest.raises(StoreError, match="ValueError: a response nobody understands"):
        store.append_manifest(lease, body(2), Waits())
    assert kinds(store) == ["lease", "checkpoint", "void"]


def test_what_cannot_be_written_down_is_never_put(store: CheckpointStore, lease: Lease) -> None:
    with pytest.raises(StoreError, match="TypeError"):
        store.append_manifest(lease, {"objects": [], "epoch": object()}, Waits())
    assert kinds(store) == ["lease", "checkpoint"]


@pytest.mark.parametrize("troubles", [[], [TIMES_OUT], [TIMES_OUT, TIMES_OUT], [BREAKS]])
def test_a_slot_that_somebody_else_has_taken_means_that_the_lease_is_lost(
    blobs: Troubled, store: CheckpointStore, lease: Lease, troubles: list[str]
) -> None:
    CheckpointStore(blobs).acquire_lease("other")
    log = ManifestLog(blobs)
    blobs.troubles = troubles
    with pytest.raises(LeaseLost, match="'other' has taken over with lease 2"):
        store.append_manifest(lease, body(2), Waits())
    blobs.arrive()
    assert [entry.kind for entry in log.entries()] == ["lease", "checkpoint", "lease"]


def test_a_slot_taken_by_somebody_who_starts_afresh_means_so_too(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT]
    with pytest.raises(LeaseLost, match="started afresh"):
        store.append_manifest(lease, body(2), Waits(CheckpointStore(blobs).forget_all))


@pytest.mark.parametrize("landed", [True, False])
def test_while_the_slot_cannot_be_read_nobody_knows(
    blobs: Troubled, store: CheckpointStore, lease: Lease, landed: bool
) -> None:
    blobs.troubles = [ANSWER_LOST] if landed else [TIMES_OUT, ANSWER_LOST]
    blobs.unreadable = 4  # the first look at whether the store is still there fails as well
    waits = Waits()
    if landed:
        assert store.append_manifest(lease, body(2), waits) == 3
    else:
        with pytest.raises(StoreError, match="no answer"):
            store.append_manifest(lease, body(2), waits)
    assert waits.troubles.count("cannot be read now") == 3
    assert epochs(store) == ([2, 1] if landed else [1])


def test_a_slot_that_was_used_and_pruned_meanwhile_means_that_the_lease_is_lost(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    """We slept so long that our manifest was found, restored from, and pruned by the next driver."""

    def meanwhile() -> None:
        blobs.arrive()
        heir = CheckpointStore(blobs)
        taken = heir.acquire_lease("heir")
        heir.append_manifest(taken, body(3))
        heir.prune(1)

    blobs.troubles = [TIMES_OUT]
    with pytest.raises(LeaseLost):
        store.append_manifest(lease, body(2), Waits(meanwhile))
    assert epochs(store) == [3]


def test_void_entries_stay_whatever_is_removed(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT]
    with pytest.raises(StoreError):
        store.append_manifest(lease, body(2), Waits())
    store.prune(1)
    store.sweep(lease)
    for epoch in (3, 4, 5):
        store.append_manifest(lease, body(epoch))
    store.prune(1)
    store.remove_given_up()
    heir = CheckpointStore(blobs)
    taken = heir.acquire_lease("heir")
    heir.sweep(taken)
    heir.forget_all(taken)
    assert kinds(heir) == ["lease", "void", "lease", "fresh"]
    blobs.arrive()
    assert epochs(heir) == []


def test_a_void_entry_is_the_newest_for_whoever_takes_over_or_is_handed_the_lease(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT]
    with pytest.raises(StoreError):
        store.append_manifest(lease, body(2), Waits())
    assert CheckpointStore(blobs).append_manifest(lease, body(3)) == 4
    assert CheckpointStore(blobs).acquire_lease("heir") == Lease(2, 5)


def test_starting_afresh_is_known_to_have_happened_or_not(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    ref = store.put("a", b"1")
    blobs.troubles = [TIMES_OUT]
    with pytest.raises(StoreError, match="no answer"):
        store.forget_all(lease, Waits())
    blobs.arrive()
    assert epochs(store) == [1] and store.get(ref) == b"1"
    blobs.troubles = [ANSWER_LOST]
    store.forget_all(lease, Waits())
    assert epochs(store) == [] and store.blobs.list("objects/") == []


# Leases that land late.


def test_a_lease_that_lands_late_fences_like_one_whose_owner_died_at_once(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT]
    with pytest.raises(TimeoutError):
        CheckpointStore(blobs).acquire_lease("dying")
    blobs.arrive()
    with pytest.raises(LeaseLost, match="'dying' has taken over"):
        store.append_manifest(lease, body(2), Waits())
    heir = CheckpointStore(blobs)
    assert heir.acquire_lease("heir") == Lease(3, 4)
    assert epochs(heir) == [1]


def test_a_lease_whose_slot_was_taken_meanwhile_never_lands(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT]
    with pytest.raises(TimeoutError):
        CheckpointStore(blobs).acquire_lease("dying")
    heir = CheckpointStore(blobs)
    taken = heir.acquire_lease("heir")
    blobs.arrive()
    assert taken == Lease(2, 3)
    assert heir.append_manifest(taken, body(2), Waits()) == 4


def test_a_lease_that_lands_late_in_a_pruned_slot_fences_and_is_held_by_nobody(
    blobs: Troubled, store: CheckpointStore, lease: Lease
) -> None:
    blobs.troubles = [TIMES_OUT]
    with pytest.raises(TimeoutError):
        CheckpointStore(blobs).acquire_lease("dying")
    for epoch in (2, 3, 4):
        store.append_manifest(lease, body(epoch))
    store.prune(1)
    blobs.arrive()
    assert kinds(store) == ["lease", "lease", "checkpoint"]
    assert store.append_manifest(lease, body(5)) == 6
    holder = store.survey().holder
    assert holder is not None and holder.owner == "driver"
    CheckpointStore(blobs).acquire_lease("heir")
    holder = store.survey().holder
    assert holder is not None and (holder.owner, holder.number) == ("heir", 3)


# Those who only look, and those who go back.


def manifest(epoch: int) -> dict[str, Any]:
    numbers = {"began_s": 0.0, "duration_s": 0.0}
    rest = {"pipeline": "p", "final": False, "shard_counts": {}, "records": []}
    return {**body(epoch), **numbers, **rest}


@pytest.fixture
def two_epochs(store: CheckpointStore) -> CheckpointStore:
    lease = store.acquire_lease("driver")
    for epoch in (1, 2):
        store.append_manifest(lease, manifest(epoch))
    return store


def test_a_void_entry_is_no_checkpoint_and_nothing_is_wrong_with_it(
    blobs: Troubled, store: CheckpointStore
) -> None:
    lease = store.acquire_lease("driver")
    store.append_manifest(lease, manifest(1))
    blobs.troubles = [TIMES_OUT]
    with pytest.raises(StoreError):
        store.append_manifest(lease, manifest(2), Waits())
    seen = look(CheckpointStore(blobs), verify=True)
    assert [(row.epoch, row.status, row.complete) for row in seen.checkpoints] == [
        (1, CheckpointStatus.CURRENT, True)
    ]
    assert store.survey().skipped == [] and seen.holder.owner == "driver"


def test_a_rewind_says_that_it_failed_only_if_it_never_takes_effect(
    blobs: Troubled, two_epochs: CheckpointStore
) -> None:
    by_hand: dict[str, Any] = {"owner": "by hand", "now": 0.0, "wait": Waits()}
    blobs.troubles = ["", TIMES_OUT]
    with pytest.raises(StoreError, match="no answer"):
        rewind(CheckpointStore(blobs), 1, **by_hand)
    blobs.arrive()
    assert epochs(two_epochs) == [2, 1]
    blobs.troubles = ["", ANSWER_LOST]
    assert rewind(CheckpointStore(blobs), 1, **by_hand).epoch == 1
    assert epochs(two_epochs)[0] == 1


# What the log looks like on the disk.


def test_entries_are_read_as_they_have_always_been_written() -> None:
    line = (
        b'{"checksum": "a823391a8985b9bbdebd57c988646a7b", "entry": '
        b'{"kind": "checkpoint", "lease": 4, "body": {"objects": [], "epoch": 7}}}\n'
    )
    entry = entry_of(3, line)
    assert (entry.kind, entry.lease, entry.body) == ("checkpoint", 4, body(7))


def test_the_default_wait_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(manifest_append.time, "sleep", slept.append)
    blobs = Troubled()
    store = CheckpointStore(blobs)
    lease = store.acquire_lease("driver")
    blobs.troubles = [TIMES_OUT, TIMES_OUT]
    with pytest.raises(StoreError):
        store.append_manifest(lease, body(1))
    assert slept == [manifest_append.PAUSE_S] * 2
    assert path_of(2) in blobs.list("manifests/")
