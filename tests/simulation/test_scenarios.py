"""Failure stories on the simulator, told one by one: what happens, and what must hold then.

Each is run under several seeds, so that it does not hang on one lucky timing.
"""

from functools import partial
from typing import Any, TypeVar

import pytest

from everstream.connectors.generate.sources import Range
from everstream.core.messages import Restore
from everstream.core.orders import Outcome, Policy
from everstream.core.scheme import NONE
from everstream.events import CheckpointAborted, StoreDamaged, WorkerLost
from everstream.pipeline.stream import Pipeline
from everstream.simulation.checks import Answers
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.workers import SimulatedWorker
from everstream.simulation.world import World
from everstream.state import store
from everstream.state.manifests import ManifestLog, entry_of, path_of
from tests.sampling import first_of
from tests.simulation.counting import RECORDS, calm

Told = TypeVar("Told")


def short_build(pipeline: Pipeline, world: int) -> None:
    short = pipeline.source(Range(8, batch=2), name="short")
    long = pipeline.source(Range(100, 500, batch=2), name="long")
    short.union(long).on_demand().map(lambda x: x, name="both", shards=2).on_demand().sink(
        OutsideSink(world), name="out"
    )


SHORT_AND_LONG = Shape(
    "short-and-long", 3, short_build, lambda: {"out": [*range(8), *range(100, 500)]}
)
"""One of the two sources ends long before the other."""


@pytest.fixture(params=first_of(range(3), 1))
def world(request: pytest.FixtureRequest) -> World:
    return calm(request.param)


def kill_twice(world: World) -> None:
    """After the first epoch, and once more when that has been made up for."""

    def kill() -> None:
        world.when("worker 2 receives Resume", lambda: world.kill_worker(1))
        world.kill_worker(1)

    world.when("epoch 1 is stable", kill)


def notes(world: World) -> str:
    return "\n".join(world.history.notes)


def told(world: World, kind: type[Told]) -> list[Told]:
    """The events of one kind that drivers reported."""
    return [event for event in world.history.events if isinstance(event, kind)]


def rolled_back_to(world: World) -> set[int | None]:
    return {lost.from_epoch for lost in told(world, WorkerLost)}


def fell_back_to(world: World) -> set[int | None]:
    return {damaged.fallback_epoch for damaged in told(world, StoreDamaged)}


def test_a_run_without_faults_takes_several_epochs(world: World) -> None:
    history = world.run()
    assert history.right
    assert history.epochs >= 4 and history.recoveries == 0


def test_a_worker_killed_before_the_first_epoch_starts_over(world: World) -> None:
    world.when("numbers:0 takes checkpoint 1", lambda: world.kill_worker(1))
    assert world.run().right
    assert 0 in rolled_back_to(world)


def test_a_worker_killed_after_the_first_epoch_goes_back_to_it(world: World) -> None:
    world.when("worker 1 receives Stable, epoch 1", lambda: world.kill_worker(1))
    history = world.run()
    assert history.right and history.recoveries == 1
    assert 1 in rolled_back_to(world)


def test_a_worker_killed_twice_is_recovered_twice(world: World) -> None:
    kill_twice(world)
    history = world.run()
    assert history.right and history.recoveries == 2


def test_a_worker_killed_again_during_recovery_is_recovered_once_more(world: World) -> None:
    def kill_again() -> None:
        world.when("worker 2 receives Restore", lambda: world.kill_worker(2))
        world.kill_worker(1)

    world.when("worker 1 receives Stable, epoch 1", kill_again)
    history = world.run()
    assert history.right and history.recoveries >= 2


def test_every_worker_killed_at_once_is_no_worse_than_one(world: World) -> None:
    def kill_all() -> None:
        for worker in range(3):
            world.kill_worker(worker)

    world.when("epoch 2 is stable", kill_all)
    assert world.run().right


def test_a_driver_killed_between_snapshot_and_manifest_goes_back_one_epoch(world: World) -> None:
    world.when("epoch 2 is being written", world.kill_driver)
    events: list[str] = []
    world.watchers.append(events.append)
    assert world.run().right
    stable_first = "epoch 2 is stable" in events[: events.index("driver 2 starts")]
    restored = next(e for e in events[events.index("driver 2 starts") :] if "Restore" in e)
    assert f"stable {2 if stable_first else 1}" in restored


def test_a_driver_killed_right_after_the_manifest_goes_on_from_it(world: World) -> None:
    world.when("epoch 2 is stable", world.kill_driver)
    events: list[str] = []
    world.watchers.append(events.append)
    assert world.run().right
    restored = [e for e in events[events.index("driver 2 starts") :] if "Restore" in e]
    assert "stable 2" in next(event for event in restored if "zombie" not in event)


def test_a_worker_that_dies_while_a_manifest_is_written_waits_for_the_store(world: World) -> None:
    world.when("epoch 2 is being written", lambda: world.kill_worker(0))
    restores: list[Restore] = []
    world.watchers.append(
        lambda text: (
            restores.append(world.coordinator._strategy._restore_command())
            if text.startswith("worker 1 receives Restore")
            else None
        )
    )
    assert world.run().right
    assert [command.stable for command in restores] == [0, 2], "nobody goes back to epoch 1"


def test_a_zombie_worker_that_goes_on_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    workers: list[SimulatedWorker] = []
    make = SimulatedWorker.__init__

    def remember(self: SimulatedWorker, *arguments: Any) -> None:
        workers.append(self)
        make(self, *arguments)

    monkeypatch.setattr(SimulatedWorker, "__init__", remember)
    zombie: list[str] = []
    for seed in range(10):
        world = calm(seed)
        world.when("count:1 takes checkpoint 2", partial(world.lose_worker, seed % 3))
        world.watchers.append(lambda text: zombie.append(text) if "(zombie)" in text else None)
        assert world.run().right
    assert any("data" in text for text in zombie), "it went on sending"
    assert any("has saved" in text for text in zombie), "and saving"
    dropped = sum(runner.dropped for worker in workers for runner in worker.runners.values())
    assert dropped > 0, "its frames were dropped"


def rot_newest(world: World) -> None:
    """What only the newest checkpoint needs."""
    newest, before = world.store.manifests()[:2]
    only_new = set(newest.objects) - set(before.objects)
    ref = sorted(only_new, key=lambda ref: ref.name)[0]
    world.rot_object(f"objects/{ref.name}.{ref.checksum}")


def test_a_corrupt_newest_checkpoint_falls_back_to_the_one_before(world: World) -> None:
    def rot_and_kill() -> None:
        rot_newest(world)
        world.kill_worker(0)

    world.when("worker 1 receives Stable, epoch 3", rot_and_kill)
    assert world.run().right
    damaged = told(world, StoreDamaged)
    assert {(event.what, event.fallback_epoch) for event in damaged} == {("epoch 3", 2)}


def test_a_run_whose_checkpoints_are_all_damaged_stops_and_takes_nothing_back(world: World) -> None:
    def rot_and_kill() -> None:
        for path in world.disk.list("objects/count-0/"):
            world.rot_object(path)
        world.kill_worker(0)

    world.when("worker 1 receives Stable, epoch 2", rot_and_kill)
    history = world.run()
    assert history.outcome is Outcome.FAILED and history.refused and history.right
    assert "start over with --fresh" in notes(world)
    assert any(world.outside.visible.values()), "what was committed is still there"


def test_an_object_that_rots_is_read_from_its_copy_and_the_run_says_so(world: World) -> None:
    def rot_and_kill() -> None:
        for path in world.disk.list("objects/"):
            world.disk.rot(path)
        world.kill_worker(0)

    world.when("worker 1 receives Stable, epoch 3", rot_and_kill)
    assert world.run().outcome is Outcome.FINISHED
    assert "was read from its copy" in notes(world)
    assert not told(world, StoreDamaged)


def test_a_fall_back_holds_even_if_the_driver_dies_on_the_way(world: World) -> None:
    def rot_and_kill() -> None:
        rot_newest(world)
        world.when("epoch 1 is stable", kill_driver_on_the_way)
        world.kill_worker(0)

    def kill_driver_on_the_way() -> None:
        world.when("worker 1 receives Restore", world.kill_driver)

    world.when("worker 1 receives Stable, epoch 2", rot_and_kill)
    events: list[str] = []
    world.watchers.append(events.append)
    assert world.run().right
    after = [e for e in events[events.index("driver 2 starts") :] if "Restore" in e]
    assert all("stable 2" not in event for event in after), "the broken epoch is never tried again"


def rot_the_manifest_that_a_fall_back_wrote(world: World) -> None:
    """Epoch 3 rots, the run falls back to 2, then the new manifest of 2 rots and the driver dies."""

    def rot_and_kill() -> None:
        rot_newest(world)
        world.when("epoch 2 is stable", lambda: world.when("worker 1 receives Resume", then_rot))
        world.kill_worker(0)

    def then_rot() -> None:
        world.rot_object(path_of(world.store.manifests()[0].slot))
        world.kill_driver()

    world.when("worker 1 receives Stable, epoch 3", rot_and_kill)


def test_a_rotten_manifest_of_a_fall_back_does_not_bring_back_what_was_given_up(
    world: World,
) -> None:
    rot_the_manifest_that_a_fall_back_wrote(world)
    events: list[str] = []
    world.watchers.append(events.append)
    assert world.run().right
    after = [e for e in events[events.index("driver 2 starts") :] if "Restore" in e]
    assert after and all("stable 3" not in event for event in after)
    assert 2 in fell_back_to(world)


def test_a_store_that_keeps_what_was_given_up_would_be_caught_by_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "standing", list)
    rot_the_manifest_that_a_fall_back_wrote(world)
    events: list[str] = []
    world.watchers.append(events.append)
    world.run()
    after = [e for e in events[events.index("driver 2 starts") :] if "Restore" in e]
    assert any("stable 3" in event for event in after), "the scenario has lost its sting"


def test_a_full_disk_costs_epochs_but_no_results(world: World) -> None:
    world.when("epoch 1 is stable", lambda: world.fill_disk(for_s=0.1))
    history = world.run()
    assert history.right and history.recoveries == 0
    reasons = [failed.reason for failed in told(world, CheckpointAborted)]
    assert any("could not save" in reason and "No space left" in reason for reason in reasons)


def test_a_disk_that_is_full_at_the_end_delays_the_end() -> None:
    for seed in range(3):
        world = calm(seed)
        world.when("numbers:0 takes its last", partial(world.fill_disk, 0.3))
        assert world.run().right
        assert told(world, CheckpointAborted)


def test_a_manifest_whose_answer_got_lost_counts(world: World) -> None:
    world.when("epoch 2 is being written", world.lose_answer)
    world.when("epoch 2 is stable", lambda: world.kill_worker(0))
    assert world.run().right
    assert not told(world, CheckpointAborted)


def give_up_epoch_two_and_let_its_manifest_arrive_late(world: World) -> None:
    """Its put times out and it is given up, a worker dies, the put arrives, and the driver dies."""
    world.when("epoch 2 is being written", lambda: world.delay_manifest(for_s=0.4))
    world.when("epoch 2 is given up", lambda: world.kill_worker(0))
    world.when("manifests/00000003.json arrives late", world.kill_driver)


def test_a_manifest_that_arrives_after_it_was_given_up_counts_for_nobody(world: World) -> None:
    give_up_epoch_two_and_let_its_manifest_arrive_late(world)
    events: list[str] = []
    world.watchers.append(events.append)
    assert world.run().right
    assert 2 in {failed.epoch for failed in told(world, CheckpointAborted)}
    assert 1 in rolled_back_to(world)
    restored = next(e for e in events[events.index("driver 2 starts") :] if "Restore" in e)
    assert "stable 1" in restored


def test_a_driver_that_only_looks_whether_it_landed_would_be_caught_by_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: ManifestLog, slot: int, data: bytes) -> bytes:
        path = path_of(slot)
        is_void = entry_of(slot, data).kind == "void"
        return data if is_void and path not in self._blobs.list(path) else occupy(self, slot, data)

    occupy = ManifestLog.occupy
    monkeypatch.setattr(ManifestLog, "occupy", look)
    monkeypatch.setattr(Answers, "on_answer", lambda self, number, landed: None)
    give_up_epoch_two_and_let_its_manifest_arrive_late(world)
    assert not world.run().right
    assert "was neither prepared nor committed" in notes(world), "the scenario has lost its sting"


def test_a_manifest_that_is_only_late_counts(world: World) -> None:
    world.when("epoch 2 is being written", lambda: world.delay_manifest(for_s=0.0))
    world.when("epoch 2 is stable", lambda: world.kill_worker(0))
    assert world.run().right
    assert not told(world, CheckpointAborted)


def test_a_lease_that_arrives_late_keeps_nobody_from_taking_over(world: World) -> None:
    world.when("epoch 2 is stable", lambda: (world.delay_manifest(for_s=0.04), world.kill_driver()))
    assert world.run().right
    assert world.lease.number >= 2


@pytest.mark.parametrize("seed", first_of(range(20), 6))
def test_the_end_of_a_source_may_race_an_epoch(seed: int) -> None:
    world = calm(seed, SHORT_AND_LONG, every_s=0.004)
    world.when("short:0 takes its last", lambda: world.kill_worker(seed % 3))
    assert world.run().right


def test_a_source_that_ended_before_the_checkpoint_stays_ended(world: World) -> None:
    world = calm(world.seed, SHORT_AND_LONG)
    world.when("epoch 2 is stable", lambda: world.kill_worker(0))
    events: list[str] = []
    world.watchers.append(events.append)
    assert world.run().right
    after = events[events.index("kill worker 0") :]
    assert not any("short:0->" in event and "zombie" not in event for event in after)


def test_a_stopped_run_is_resumed_by_the_next_driver_without_loss(world: World) -> None:
    world.when("epoch 1 is stable", world.stop)
    stopped = world.run()
    assert stopped.outcome is Outcome.STOPPED and not stopped.violations
    shown = world.outside.counts("out")
    assert 0 < shown.total() < RECORDS
    world.resume()
    assert world.run().right
    assert world.outside.counts("out").total() == RECORDS


def test_everything_read_before_the_stop_is_shown(world: World) -> None:
    world.when("epoch 1 is stable", world.stop)
    world.run()
    read = sum(
        record.counts["numbers"][1]
        for record in world.coordinator.line.values()
        if record.shard.operator == "numbers"
    )
    assert world.outside.counts("out").total() == read


def test_a_worker_killed_while_the_run_stops_does_not_keep_it_from_stopping(world: World) -> None:
    world.when("epoch 1 is stable", world.stop)
    world.when("stop requested", lambda: world.kill_worker(1))
    stopped = world.run()
    assert stopped.outcome is Outcome.STOPPED and not stopped.violations
    world.resume()
    assert world.run().right


def test_without_checkpoints_a_kill_starts_the_run_over(world: World) -> None:
    policy = Policy(checkpoints=False)
    world = calm(world.seed, scheme=NONE, policy=policy)
    world.scheduler.at(0.15, lambda: world.kill_worker(1))
    history = world.run()
    assert history.right and history.epochs == 1
    assert 0 in rolled_back_to(world)


def test_too_many_failures_end_the_run_with_a_reason(world: World) -> None:
    world = calm(world.seed, policy=Policy(every_s=0.03, max_restarts=1))
    kill_twice(world)
    history = world.run()
    assert history.outcome is Outcome.FAILED and not history.violations
    assert "more than 1 failures within 600 s" in notes(world)
