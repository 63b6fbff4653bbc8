"""The coordinator goes back further: new drivers, corrupt checkpoints, what was given up."""

from dataclasses import replace

from everstream.core.ids import Epoch
from everstream.core.messages import Restore, RestoreFailed, StartCheckpoint
from everstream.core.orders import EndRun, Outcome, WriteManifest
from everstream.errors import StoreError
from everstream.events import StoreDamaged

from .coordinating import DOUBLE, NUMBERS, Run, manifest, of


def test_a_new_driver_goes_on_from_the_newest_manifest() -> None:
    run = Run(manifests=[manifest(3), manifest(2)])
    (restore, _) = of(run.gather(), Restore)
    assert restore.stable == 3
    run.restored()
    assert of(run.tick(20.0), StartCheckpoint) == [StartCheckpoint(Epoch(4))] * 2


def test_a_new_driver_has_nothing_to_do_if_the_last_epoch_is_stable() -> None:
    run = Run(manifests=[manifest(3, final=True)])
    run.gather()
    assert of(run.restored(), EndRun) == [EndRun(Outcome.FINISHED)]


def test_a_corrupt_checkpoint_falls_back_and_makes_that_durable_first() -> None:
    gone_back_to_two = manifest(3).gone_back_to(manifest(2))
    run = Run(manifests=[manifest(3), manifest(2)])
    run.gather()
    orders = run.report(RestoreFailed(DOUBLE, run.it.generation, "torn"))
    assert of(orders, StoreDamaged) == [StoreDamaged("epoch 3", "double:0: torn", 2)]
    assert of(orders, WriteManifest) == [WriteManifest(gone_back_to_two)]
    assert of(orders, Restore) == [], "nobody goes back before it is written"
    orders = run.it.on_manifest_written(1.0)
    assert {restore.stable for restore in of(orders, Restore)} == {2}
    run.restored()
    assert of(run.tick(20.0), StartCheckpoint) == [StartCheckpoint(Epoch(4))] * 2


def test_every_manifest_after_a_fall_back_says_where_the_store_went_back_to() -> None:
    earlier = replace(manifest(3), returns=(1,))
    run = Run(manifests=[earlier, manifest(2)])
    run.gather()
    orders = run.report(RestoreFailed(DOUBLE, run.it.generation, "torn"))
    assert [order.manifest.returns for order in of(orders, WriteManifest)] == [(1, 2)]
    run.it.on_manifest_written(1.0)
    run.restored()
    run.tick(20.0)
    (order,) = of(run.taken(4, NUMBERS, DOUBLE), WriteManifest)
    assert (order.manifest.epoch, order.manifest.returns) == (4, (1, 2))


def test_a_fall_back_that_cannot_be_written_is_tried_again() -> None:
    gone_back_to_two = manifest(3).gone_back_to(manifest(2))
    run = Run(manifests=[manifest(3), manifest(2)])
    run.gather()
    run.report(RestoreFailed(DOUBLE, run.it.generation, "torn"))
    orders = run.it.on_manifest_failed(StoreError("no room"), 1.0)
    assert {restore.stable for restore in of(orders, Restore)} == {3}
    orders = run.report(RestoreFailed(DOUBLE, run.it.generation, "torn"))
    assert of(orders, WriteManifest) == [WriteManifest(gone_back_to_two)]


def test_nobody_goes_back_to_the_start_by_itself_once_something_was_stable() -> None:
    run = Run(manifests=[manifest(3)])
    run.gather()
    orders = run.report(RestoreFailed(DOUBLE, run.it.generation, "torn"))
    assert of(orders, WriteManifest) == [] and of(orders, Restore) == [], "nothing is changed"
    (ended,) = of(orders, EndRun)
    assert ended.outcome is Outcome.FAILED
    for said in ("epoch 3 cannot be restored (double:0: torn)", "backup", "--fresh", "deletes"):
        assert said in str(ended.error)


def test_a_run_that_has_nothing_to_go_back_to_and_cannot_start_says_so() -> None:
    run = Run()
    run.gather()
    (ended,) = of(run.report(RestoreFailed(DOUBLE, run.it.generation, "odd")), EndRun)
    assert "double:0 cannot start: odd" in str(ended.error)


def test_an_epoch_that_was_given_up_is_not_gone_back_to_by_a_later_driver() -> None:
    run = Run(manifests=[manifest(2), manifest(3), manifest(2), manifest(1)])
    assert [m.epoch for m in run.it.manifests] == [2, 1]


def test_two_shards_that_cannot_restore_fall_back_one_epoch_not_two() -> None:
    run = Run(manifests=[manifest(3), manifest(2), manifest(1)])
    run.gather()
    g = run.it.generation
    orders = run.report(RestoreFailed(DOUBLE, g, "torn"), RestoreFailed(NUMBERS, g, "torn"))
    assert len(of(orders, WriteManifest)) == 1
