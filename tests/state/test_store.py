"""The checkpoint store: whole objects, one order of manifests, one driver at a time."""

import builtins
import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import CheckpointNumber, Epoch, ShardId
from everstream.errors import CorruptObject, InternalError, LeaseLost, StoreError, UserError
from everstream.inspection.rewind import rewind
from everstream.state import CheckpointStore, FsspecBlobs, Lease, ObjectRef
from everstream.state.manifests import INDEX, Holder, ManifestLog, encoded, path_of


def body(*refs: ObjectRef, **more: Any) -> dict[str, Any]:
    return {"objects": [ref.to_json() for ref in refs], **more}


def slots(store: CheckpointStore) -> list[int]:
    return [manifest.slot for manifest in store.manifests()]


def object_names(store: CheckpointStore) -> list[str]:
    return [Path(path).stem for path in store.blobs.list("objects/")]


OFTEN_OPENED = pytest.mark.parametrize(
    "url", ["disk", "memory", pytest.param("bucket", marks=pytest.mark.long)], indirect=True
)
"""For tests that open a store a hundred times: a bucket needs a second for two of them."""


def test_an_object_comes_back_as_it_was_put(url: str) -> None:
    store = CheckpointStore.at(url)
    ref = store.put("shard-0/7", b"state")
    assert (ref.name, ref.size_bytes) == ("shard-0/7", 5)
    assert ObjectRef.from_json(json.loads(json.dumps(ref.to_json()))) == ref
    assert pickle.loads(pickle.dumps(CheckpointStore.at(url))).get(ref) == b"state"


def test_a_zombie_cannot_overwrite_an_object(url: str) -> None:
    store = CheckpointStore.at(url)
    ref = store.put("shard-0/7", b"state")
    store.put("shard-0/7", b"ghost")
    assert store.get(ref) == b"state"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: None, "it is missing"),
        (lambda data: data[:-1], "it has 9 bytes instead of 10"),
        (lambda data: b"X" + data[1:], "its checksum does not match"),
    ],
)
def test_a_damaged_object_is_named_with_what_is_wrong(url: str, damage: Any, problem: str) -> None:
    store = CheckpointStore.at(url)
    ref = store.put("shard-0/7", b"0123456789")
    for path in store.blobs.list(""):
        damaged = damage(store.blobs.read(path))
        store.blobs.delete(path)
        if damaged is not None:
            store.blobs.write(path, damaged)
    with pytest.raises(CorruptObject, match=f"'shard-0/7'.*{problem}") as caught:
        store.get(ref)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_object_is_there_twice_so_that_one_flipped_bit_costs_nothing(url: str) -> None:
    store = CheckpointStore.at(url)
    told: list[str] = []
    store.on_damage = told.append
    ref = store.put("shard-0/7", b"0123456789")
    paths = store.blobs.list("")
    assert sum(len(store.blobs.read(path)) for path in paths) == 2 * ref.size_bytes, "its cost"
    for path in paths:
        whole = store.blobs.read(path)
        store.blobs.write(path, b"X" + whole[1:])
        assert store.get(ref) == b"0123456789" and store.problem_of(ref) is None
        store.blobs.write(path, whole)
    (text,) = told
    assert "'shard-0/7' was read from its copy: its checksum does not match" in text
    store.discard([ref])
    assert store.blobs.list("") == []


def test_manifests_are_listed_newest_first_across_drivers(url: str) -> None:
    first = CheckpointStore.at(url)
    lease = first.acquire_lease("first")
    assert lease == Lease(1, 1)
    ref = first.put("a", b"1")
    assert [first.append_manifest(lease, body(ref, epoch=n)) for n in (1, 2)] == [2, 3]
    second = CheckpointStore.at(url)
    taken = second.acquire_lease("second")
    assert taken == Lease(2, 4)
    second.append_manifest(taken, body(ref, epoch=3))
    found = second.manifests()
    assert [(m.slot, m.lease, m.body["epoch"]) for m in found] == [(5, 2, 3), (3, 1, 2), (2, 1, 1)]
    assert found[0].objects == (ref,) and second.skipped == []


def test_a_driver_that_lost_its_lease_learns_it_and_changes_nothing(url: str) -> None:
    old, new = CheckpointStore.at(url), CheckpointStore.at(url)
    lease = old.acquire_lease("old")
    old.append_manifest(lease, body())
    taken = new.acquire_lease("new")
    for _ in range(2):
        with pytest.raises(LeaseLost, match="'new' has taken over with lease 2"):
            old.append_manifest(lease, body(epoch="ghost"))
    orphan = new.put("in-flight", b"1")
    for attempt in (lambda: old.sweep(lease), lambda: old.prune(1)):
        with pytest.raises(LeaseLost):
            attempt()
    assert new.get(orphan) == b"1"
    assert new.append_manifest(taken, body()) == 4
    assert slots(new) == [4, 2]


def test_a_fenced_driver_stays_fenced_when_slots_have_been_pruned(url: str) -> None:
    old, new = CheckpointStore.at(url), CheckpointStore.at(url)
    lease = old.acquire_lease("old")
    old.append_manifest(lease, body())
    taken = new.acquire_lease("new")
    for _ in range(5):
        new.append_manifest(taken, body())
    new.prune(1)
    with pytest.raises(LeaseLost):
        old.append_manifest(lease, body(epoch="ghost"))
    new.forget_all(taken)
    with pytest.raises(LeaseLost):
        old.append_manifest(lease, body(epoch="ghost"))
    assert slots(new) == []


class SlowBlobs(FsspecBlobs):
    """Does something else between the decision to create a blob and its creation."""

    meanwhile: Any = None

    def create(self, path: str, data: bytes) -> None:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        super().create(path, data)


def test_a_lease_that_came_too_late_into_a_pruned_slot_does_not_count(url: str) -> None:
    holder = CheckpointStore.at(url)
    lease = holder.acquire_lease("holder")
    blobs = SlowBlobs(url)
    slow = CheckpointStore(blobs)

    def meanwhile() -> None:
        for _ in range(4):
            holder.append_manifest(lease, body())
        holder.prune(1)

    blobs.meanwhile = meanwhile
    taken = slow.acquire_lease("slow")
    # Slot 2 was free again, but a lease there would fence nobody.
    assert taken.slot == 6
    with pytest.raises(LeaseLost):
        holder.append_manifest(lease, body())
    slow.append_manifest(taken, body())
    assert slots(slow) == [7, 5]


def test_a_driver_that_died_with_a_lease_in_the_past_disturbs_nobody(url: str) -> None:
    holder = CheckpointStore.at(url)
    lease = holder.acquire_lease("holder")
    blobs = SlowBlobs(url)
    dying = CheckpointStore(blobs)

    class Died(Exception):
        pass

    def meanwhile() -> None:
        for _ in range(4):
            holder.append_manifest(lease, body())
        holder.prune(1)

    real_list = blobs.list

    def list_then_die(prefix: str, after: str = "") -> list[str]:
        found = real_list(prefix, after)
        if path_of(2) in found:
            raise Died
        return found

    blobs.meanwhile = meanwhile
    blobs.list = list_then_die  # type: ignore[method-assign]
    with pytest.raises(Died):
        dying.acquire_lease("dying")
    assert path_of(2) in holder.blobs.list("manifests/")
    holder.append_manifest(lease, body())
    holder.prune(1)
    holder.sweep(lease)
    # Also seen from another process that was handed the lease.
    assert CheckpointStore.at(url).append_manifest(lease, body()) == 7
    assert slots(holder) == [7, 6]


@pytest.mark.parametrize(
    "damage", [lambda d: d[: len(d) // 2], lambda d: b"", lambda d: d.replace(b"epoch", b"epocH")]
)
def test_a_torn_or_corrupt_manifest_is_skipped_and_reported(url: str, damage: Any) -> None:
    store = CheckpointStore.at(url)
    lease = store.acquire_lease("driver")
    for epoch in range(3):
        store.append_manifest(lease, body(epoch=epoch))
    path = path_of(4)
    store.blobs.write(path, damage(store.blobs.read(path)))
    assert slots(store) == [3, 2]
    assert [(skipped.path, bool(skipped.reason)) for skipped in store.skipped] == [(path, True)]
    again = CheckpointStore.at(url)
    taken = again.acquire_lease("next")
    assert taken.slot == 5 and taken.number > lease.number
    assert again.append_manifest(taken, body(epoch=3)) == 6


def test_a_lease_number_does_not_go_back_when_leases_are_damaged(url: str) -> None:
    store = CheckpointStore.at(url)
    numbers = [store.acquire_lease("driver").number for _ in range(3)]
    for slot in (2, 3):
        store.blobs.write(path_of(slot), b"rubbish")
    assert CheckpointStore.at(url).acquire_lease("driver").number > max(numbers)


def test_prune_keeps_the_newest_manifests_what_they_name_and_what_nobody_names(url: str) -> None:
    store = CheckpointStore.at(url)
    lease = store.acquire_lease("driver")
    base = store.put("base", b"base")
    for number in range(4):
        store.append_manifest(lease, body(base, store.put(f"delta-{number}", b"d%d" % number)))
    store.put("in-flight", b"1")
    store.prune(2)
    assert slots(store) == [5, 4]
    assert object_names(store) == ["base", "delta-2", "delta-3", "in-flight"]
    store.append_manifest(lease, body(store.put("full", b"full")))
    store.prune(1)
    assert object_names(store) == ["full", "in-flight"]
    with pytest.raises(InternalError, match="at least one"):
        store.prune(0)


class Interrupted(FsspecBlobs):
    """Lets somebody else act before the first deletion of a path that begins so."""

    def __init__(self, url: str, before: str, act: Callable[[], None]) -> None:
        super().__init__(url)
        self._before, self._act = before, act

    def delete(self, path: str) -> None:
        if path.startswith(self._before):
            self._before = "nothing any more"
            self._act()
        super().delete(path)


def epoch_body(epoch: int, *refs: ObjectRef) -> dict[str, Any]:
    shard = ShardId("a", 0)
    record = CheckpointRecord(shard, CheckpointNumber(epoch), ("a",), objects=refs)
    return EpochManifest(Epoch(epoch), {shard: record}, pipeline="p").to_json()


@pytest.mark.parametrize("when", ["manifests/", "objects/"])
@pytest.mark.parametrize("named", [True, False], ids=["by manifests", "by orders"])
def test_a_rewind_beside_a_driver_that_is_pruning_keeps_a_checkpoint(
    url: str, when: str, named: bool
) -> None:
    """The driver is fenced in the middle of its deletions, and does not know."""

    def go_back() -> None:
        with suppress(UserError):  # epoch 1 is gone already: then the driver's own are there
            rewind(CheckpointStore.at(url), 1, owner="by hand", now=0.0)

    driver = CheckpointStore(Interrupted(url, when, go_back))
    lease = driver.acquire_lease("driver")
    refs = [driver.put(f"state-{epoch}", b"%d" % epoch) for epoch in (1, 2, 3)]
    for epoch, ref in enumerate(refs, 1):
        driver.append_manifest(lease, epoch_body(epoch, ref))
    with suppress(LeaseLost):
        driver.prune(2, objects=named)
        driver.discard([refs[0]])
    newest = CheckpointStore.at(url).manifests()[0]
    assert newest.epoch == (1 if when == "manifests/" else 3)
    assert [driver.problem_of(ref) for ref in newest.objects] == [None]


def test_who_forgets_all_removes_no_object_of_a_later_driver(url: str) -> None:
    later = CheckpointStore.at(url)
    refs: list[ObjectRef] = []

    def take_over() -> None:
        taken = later.acquire_lease("later")
        refs.append(later.put("later", b"1"))
        later.append_manifest(taken, body(refs[0]))

    fresh = CheckpointStore.at(url)
    fresh.append_manifest(fresh.acquire_lease("old"), body(fresh.put("a", b"1")))
    claim = fresh._log.claim

    def claim_slowly(*arguments: Any) -> Lease:
        lease = claim(*arguments)
        take_over()
        return lease

    fresh._log.claim = claim_slowly  # type: ignore[method-assign]
    with suppress(LeaseLost):
        fresh.forget_all()
    assert later.get(refs[0]) == b"1"


class Counting(FsspecBlobs):
    """Knows how many blobs were read or listed."""

    reads = 0

    def read(self, path: str) -> bytes:
        self.reads += 1
        return super().read(path)

    def list(self, prefix: str, after: str = "") -> builtins.list[str]:
        found = super().list(prefix, after)
        self.reads += len(found)
        return found


def opened(url: str) -> tuple[CheckpointStore, Lease, int]:
    """As a run opens a store, and how many reads that took."""
    blobs = Counting(url)
    store = CheckpointStore(blobs)
    store.survey()
    lease = store.acquire_lease("driver")
    store.manifests()
    store.sweep(lease)
    return store, lease, blobs.reads


@OFTEN_OPENED
def test_opening_a_store_takes_as_many_reads_however_often_it_was_opened(url: str) -> None:
    reads = []
    for number in range(120):
        store, lease, took = opened(url)
        reads.append(took)
        if number % 10 == 0:
            store.append_manifest(lease, body(store.put(f"{number}", b"1"), epoch=number))
        store.prune(3)
    assert max(reads[80:]) <= max(reads[40:80])
    assert [manifest.body["epoch"] for manifest in store.manifests()] == [110, 100, 90]
    assert lease.number == 120 and store.survey().holder == Holder(120, lease.slot, "driver")


@OFTEN_OPENED
@pytest.mark.parametrize("damage", [None, b"", b"rubbish"])
def test_an_index_that_is_lost_or_damaged_is_done_without(url: str, damage: bytes | None) -> None:
    store, lease, _ = opened(url)
    store.append_manifest(lease, body(epoch=1))
    for _ in range(40):
        opened(url)
    assert INDEX in store.blobs.list(INDEX)
    if damage is None:
        store.blobs.delete(INDEX)
    else:
        store.blobs.write(INDEX, damage)
    again, taken, _ = opened(url)
    assert taken.number == 42 and [m.body["epoch"] for m in again.manifests()] == [1]


def test_slots_are_listed_by_number_where_their_names_have_another_order(url: str) -> None:
    log = ManifestLog(FsspecBlobs(url))
    last = 10**8 - 1
    for slot in (last - 1, last, last + 1, last + 2):
        log.occupy(slot, encoded("lease", Lease(1, slot), ["driver", ""]))
    assert log.slots(after=last - 1) == [last, last + 1, last + 2]
    assert log.slots(after=last + 1) == [last + 2]


@OFTEN_OPENED
def test_a_fresh_start_counts_when_its_slot_is_far_behind(url: str) -> None:
    store, lease, _ = opened(url)
    store.append_manifest(lease, body(epoch=1))
    store.forget_all(lease)
    fresh = store.fresh_slot()
    for _ in range(40):
        store, lease, _ = opened(url)
    assert CheckpointStore.at(url).fresh_slot() == fresh and store.manifests() == []


def test_sweep_removes_orphans_and_nothing_else(url: str) -> None:
    store = CheckpointStore.at(url)
    lease = store.acquire_lease("driver")
    kept = store.put("kept", b"1")
    store.append_manifest(lease, body(kept))
    store.put("orphan", b"2")
    store.blobs.write("logs/frames", b"3")
    store.sweep(lease)
    assert store.get(kept) == b"1"
    assert object_names(store) == ["kept"] and store.blobs.read("logs/frames") == b"3"


def test_forgetting_all_fences_old_drivers_and_keeps_the_lease_order(url: str) -> None:
    old = CheckpointStore.at(url)
    lease = old.acquire_lease("old")
    old.append_manifest(lease, body(old.put("a", b"1")))
    fresh = CheckpointStore.at(url)
    fresh.forget_all()
    assert fresh.manifests() == [] and object_names(fresh) == []
    with pytest.raises(LeaseLost, match="started afresh"):
        old.append_manifest(lease, body())
    taken = fresh.acquire_lease("fresh")
    assert taken.number > lease.number and taken.slot > lease.slot
    fresh.append_manifest(taken, body(epoch=1))
    fresh.forget_all(taken)
    assert fresh.manifests() == []
    fresh.append_manifest(taken, body(epoch=2))
    assert [manifest.body["epoch"] for manifest in fresh.manifests()] == [2]


def test_a_crash_while_forgetting_leaves_nothing_to_recover_from(url: str) -> None:
    class Dying(FsspecBlobs):
        def delete(self, path: str) -> None:
            raise StoreError("died")

    store = CheckpointStore.at(url)
    lease = store.acquire_lease("driver")
    store.append_manifest(lease, body(store.put("a", b"1")))
    with pytest.raises(StoreError, match="died"):
        CheckpointStore(Dying(url)).forget_all()
    again = CheckpointStore.at(url)
    assert again.manifests() == []
    taken = again.acquire_lease("again")
    again.append_manifest(taken, body())
    again.prune(1)
    again.sweep(taken)
    assert object_names(again) == []


def test_a_manifest_without_object_references_is_refused(url: str) -> None:
    store = CheckpointStore.at(url)
    lease = store.acquire_lease("driver")
    for wrong in ({}, {"objects": None}, {"objects": [{"name": "a"}]}):
        with pytest.raises(InternalError):
            store.append_manifest(lease, wrong)


DRIVER = """
import sys
from everstream.errors import LeaseLost
from everstream.state import CheckpointStore
url, me = sys.argv[1:]
store = CheckpointStore.at(url)
for turn in range(8):
    lease = store.acquire_lease(me)
    try:
        for number in range(6):
            slot = store.append_manifest(lease, {"objects": [], "by": me, "lease": lease.number})
            print(slot, lease.number, flush=True)
            store.prune(3)
    except LeaseLost:
        pass
"""


def test_drivers_racing_for_one_store_never_both_make_a_manifest(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", DRIVER, url, name], stdout=subprocess.PIPE, text=True
        )
        for name in "abc"
    ]
    outputs = [driver.communicate()[0] for driver in drivers]
    assert all(driver.returncode == 0 for driver in drivers)
    made = sorted(
        tuple(map(int, line.split())) for output in outputs for line in output.splitlines()
    )
    assert len({slot for slot, _ in made}) == len(made) > 0
    numbers = [number for _, number in made]
    assert numbers == sorted(numbers), "a manifest was made under a lease that was over"
    assert slots(CheckpointStore.at(url))[:1] == [made[-1][0]]


steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["lease", "append", "append", "prune", "fresh"])),
    min_size=10,
    max_size=60,
)


@settings(max_examples=100)
@given(steps)
def test_only_the_newest_lease_ever_appends_whatever_drivers_do(
    steps: list[tuple[int, str]],
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    drivers = [CheckpointStore.at(url) for _ in range(3)]
    drivers[0].forget_all()
    leases: list[Lease | None] = [None, None, None]
    newest: int | None = None
    expected: list[int] = []
    number = 0
    for who, what in steps:
        store, lease = drivers[who], leases[who]
        if what == "lease":
            previous = number
            leases[who] = store.acquire_lease(str(who))
            number = leases[who].number  # type: ignore[union-attr]
            assert number > previous
            newest = who
        elif what == "fresh" and lease is None:
            store.forget_all()
            newest, expected = None, []
            number += 1
        elif what in ("append", "prune") and lease is not None:
            try:
                if what == "append":
                    expected.append(store.append_manifest(lease, body()))
                else:
                    store.prune(2)
                    expected = expected[-2:]
            except LeaseLost:
                assert who != newest
            else:
                assert who == newest
        assert slots(CheckpointStore.at(url)) == expected[::-1]


def write_epochs(store: CheckpointStore, lease: Lease, *epochs: int) -> None:
    for epoch in epochs:
        store.append_manifest(lease, body(epoch=epoch))


def epochs(store: CheckpointStore) -> list[int]:
    return [manifest.epoch for manifest in store.manifests()]


def test_pruning_after_a_fall_back_keeps_as_much_to_fall_back_to_as_before(url: str) -> None:
    store = CheckpointStore.at(url)
    lease = store.acquire_lease("driver")
    write_epochs(store, lease, 1, 2, 3, 2)
    store.prune(keep=3)
    assert epochs(store) == [2, 1], "3 was given up, and 2 counts once"
    write_epochs(store, lease, 4, 5)
    store.prune(keep=3)
    assert epochs(store) == [5, 4, 2]


def test_what_was_given_up_is_gone_so_nobody_can_take_it_for_the_newest(url: str) -> None:
    store = CheckpointStore.at(url)
    lease = store.acquire_lease("driver")
    write_epochs(store, lease, 1, 2, 3, 1)
    store.remove_given_up()
    newest = store.manifests()[0]
    store.blobs.write(path_of(newest.slot), b"rotten")
    assert epochs(store) == []
    assert CheckpointStore.at(url).acquire_lease("next").slot == newest.slot + 1


def test_the_next_driver_removes_what_was_given_up_if_the_one_before_died_first(url: str) -> None:
    store = CheckpointStore.at(url)
    write_epochs(store, store.acquire_lease("first"), 1, 2, 3, 2)
    heir = CheckpointStore.at(url)
    heir.sweep(heir.acquire_lease("second"))
    assert epochs(heir) == [2, 1]
