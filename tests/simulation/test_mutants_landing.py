"""Getting wrong whether a manifest landed: each mutant of the rules is caught by one of the first seeds.

The mutants build on `everstream.state.manifest_append` and the log of manifests, which Spark runs as well.
"""

from collections.abc import Callable

import pytest

from everstream.errors import LeaseLost, NotStored, StoreError
from everstream.simulation.checks import Answers
from everstream.state import manifest_append as real
from everstream.state import store
from everstream.state.manifest_append import ManifestAppend
from everstream.state.manifests import Lease, ManifestLog, encoded, entry_of, path_of
from tests.sampling import first_of

from .catching import caught

Patch = pytest.MonkeyPatch
SEEDS = 1000
"""Each mutant must be caught by one of this many seeds."""

MUTANTS: list[Callable[[Patch], None]] = []
IN_THE_OUTPUT: list[Callable[[Patch], None]] = []
"""Those that also make a run go wrong, even if nobody checks what drivers are told."""


def mutant(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS.append(function)
    return function


def shows(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    IN_THE_OUTPUT.append(function)
    return mutant(function)


def _is_void(data: bytes) -> bool:
    return entry_of(0, data).kind == "void"


@shows
def an_epoch_is_given_up_without_occupying_its_slot(patch: Patch) -> None:
    occupy = ManifestLog.occupy

    def look(self: ManifestLog, slot: int, data: bytes) -> bytes:
        taken = path_of(slot) in self._blobs.list(path_of(slot))
        return data if _is_void(data) and not taken else occupy(self, slot, data)

    patch.setattr(ManifestLog, "occupy", look)


@mutant
def a_slot_that_was_made_void_is_used_again(patch: Patch) -> None:
    settled = ManifestLog.settled

    def forgetful(self: ManifestLog, lease: Lease, slot: int) -> None:
        if not _is_void(self._blobs.read(path_of(slot))):
            settled(self, lease, slot)

    patch.setattr(ManifestLog, "settled", forgetful)


@mutant
def void_entries_are_pruned(patch: Patch) -> None:
    prune = store.CheckpointStore.prune

    def thorough(self: store.CheckpointStore, keep: int, *, objects: bool = True) -> None:
        prune(self, keep, objects=objects)
        for entry in self._log.entries()[:-1]:
            if entry.kind == "void":
                self._log.remove(entry.slot)

    patch.setattr(store.CheckpointStore, "prune", thorough)


def _patch_landing(patch: Patch, mutated: Callable[..., ManifestAppend]) -> None:
    patch.setattr(store, "append", mutated)


@shows
def a_void_entry_is_taken_for_the_manifest(patch: Patch) -> None:
    def trusting(log: ManifestLog, lease: Lease, kind: str, body: object) -> ManifestAppend:
        try:
            return (yield from real.append(log, lease, kind, body))
        except (LeaseLost, NotStored):
            raise
        except StoreError:
            return log.next_slot(lease) - 1

    _patch_landing(patch, trusting)


@mutant
def somebody_elses_entry_is_taken_for_the_manifest(patch: Patch) -> None:
    def trusting(log: ManifestLog, lease: Lease, kind: str, body: object) -> ManifestAppend:
        try:
            return (yield from real.append(log, lease, kind, body))
        except LeaseLost:
            return log.next_slot(lease)

    _patch_landing(patch, trusting)


@shows
def a_manifest_that_landed_after_all_is_given_up(patch: Patch) -> None:
    def pessimistic(log: ManifestLog, lease: Lease, kind: str, body: object) -> ManifestAppend:
        steps = real.append(log, lease, kind, body)
        trouble: Exception | None = None
        while True:
            try:
                trouble = next(steps)
            except StopIteration as end:
                if trouble is not None:
                    raise StoreError("it was not there at first") from trouble
                slot: int = end.value
                return slot
            yield trouble

    _patch_landing(patch, pessimistic)


@shows
def a_lost_lease_is_ignored(patch: Patch) -> None:
    def stubborn(log: ManifestLog, lease: Lease, kind: str, body: object) -> ManifestAppend:
        try:
            return (yield from real.append(log, lease, kind, body))
        except LeaseLost:
            slot = log.slots()[-1] + 1
            log.occupy(slot, encoded(kind, lease, body))
            return slot

    _patch_landing(patch, stubborn)


@mutant
def the_manifest_itself_is_put_again(patch: Patch) -> None:
    """So it may land a second time, when its slot has been pruned."""

    def eager(log: ManifestLog, lease: Lease, kind: str, body: object) -> ManifestAppend:
        slot, data = log.next_slot(lease), encoded(kind, lease, body)
        while True:
            try:
                held = log.occupy(slot, data)
                break
            except (OSError, NotStored) as error:
                yield error
        if held != data:
            raise log.lost(lease, slot, held)
        log.settled(lease, slot)
        return slot

    _patch_landing(patch, eager)


@pytest.mark.parametrize("breaks", first_of(MUTANTS, 2), ids=lambda function: function.__name__)
def test_one_of_the_first_seeds_catches(
    breaks: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    breaks(monkeypatch)
    assert any(caught("aligned", seed) for seed in range(SEEDS)), f"{SEEDS} seeds do not notice"


@pytest.mark.parametrize(
    "breaks", first_of(IN_THE_OUTPUT, 1), ids=lambda function: function.__name__
)
def test_one_of_the_first_seeds_goes_wrong_where_everybody_can_see_it(
    breaks: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    breaks(monkeypatch)
    monkeypatch.setattr(Answers, "on_answer", lambda self, number, landed: None)
    assert any(caught("aligned", seed) for seed in range(SEEDS)), f"{SEEDS} seeds do not notice"
