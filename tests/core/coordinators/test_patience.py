"""What the coordinator says when it waits, and when it keeps quiet."""

from everstream.core.coordinators.patience import Patience, listed
from everstream.core.orders import Note, Policy, WriteManifest

from .coordinating import DOUBLE, H1, NUMBERS, Run, of


def notes(orders: list[object]) -> list[str]:
    return [note.text for note in of(orders, Note)]  # type: ignore[arg-type]


def run() -> Run:
    return Run(Policy(every_s=10.0, slow_after_s=5.0)).to_running()


def test_a_wait_is_said_once_it_is_long_and_again_each_time_it_has_doubled() -> None:
    patience = Patience(5.0)
    said = [at for at in range(50) if patience.lost_with("epoch 1", float(at)) is not None]
    assert said == [5, 10, 20, 40]


def test_another_wait_starts_from_nothing() -> None:
    patience = Patience(5.0)
    assert patience.lost_with("epoch 1", 0.0) is None
    assert patience.lost_with("epoch 2", 6.0) is None
    assert patience.lost_with(None, 20.0) is None
    assert patience.lost_with("epoch 2", 21.0) is None
    assert patience.lost_with("epoch 2", 26.0) == 5.0


def test_a_slow_epoch_is_said_with_the_shards_that_are_missing() -> None:
    it = run()
    it.tick(10.0)
    it.taken(1, NUMBERS)
    it.tick(11.0)
    [text] = notes(it.tick(16.0))
    assert text == f"epoch 1 is taking longer than 5 s; still missing: {DOUBLE}"
    assert notes(it.tick(17.0)) == []


def test_a_manifest_that_hangs_is_said_and_that_going_back_waits_for_it() -> None:
    it = run()
    it.tick(10.0)
    assert of(it.taken(1, NUMBERS, DOUBLE), WriteManifest)
    it.tick(11.0)
    assert notes(it.tick(16.0)) == ["writing the manifest of epoch 1 is taking longer than 5 s"]
    it.it.on_host_lost(H1, "killed", 17.0)
    it.tick(17.0)
    [text] = notes(it.tick(22.0))
    assert "going back waits for it" in text


def test_restoring_is_said_only_when_every_host_is_there() -> None:
    it = run()
    it.it.on_host_lost(H1, "killed", 1.0)
    assert notes(it.tick(1.0)) == notes(it.tick(9.0)) == []
    it.it.on_host_joined(H1, "address", 10.0)
    it.tick(10.0)
    [text] = notes(it.tick(15.0))
    assert text.startswith("restoring epoch 0") and str(NUMBERS) in text


def test_a_run_that_waits_for_nothing_says_nothing() -> None:
    it = run()
    it.epoch(1, at_s=10.0)
    assert notes(it.tick(19.0)) == []


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"
