"""Micro-batches whose newest checkpoint is damaged go back, and every manifest after that says so."""

from collections.abc import Sequence

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.orders import Outcome
from everstream.engine.microbatch.orders import ShardReport
from everstream.events import StoreDamaged
from everstream.simulation.shapes import shape_for
from tests.engine.microbatch.world import CALM, DriverDies, LocalWorld

DAMAGED = 3


class Rotten(LocalWorld):
    """The third checkpoint is lost with its copies, and then the driver dies."""

    def stable(self, manifest: EpochManifest, reports: Sequence[ShardReport]) -> None:
        if self.drivers == 1 and manifest.epoch == DAMAGED:
            older = EpochManifest.from_json(self.store.manifests()[1].body)
            kept = {ref for record in older.records.values() for ref in record.objects}
            named = {ref for record in manifest.records.values() for ref in record.objects}
            self.store.discard(named - kept)
            raise DriverDies


def test_every_manifest_after_a_fall_back_says_where_the_store_went_back_to() -> None:
    world = Rotten(1, shape_for(1), CALM)
    world.budget = 3
    assert world.run() is Outcome.FINISHED and world.drivers == 2
    damaged = [event for event in world.events if isinstance(event, StoreDamaged)]
    assert DAMAGED - 1 in [event.fallback_epoch for event in damaged]
    manifests = [EpochManifest.from_json(entry.body) for entry in world.store.manifests()]
    assert {manifest.returns for manifest in manifests} == {(DAMAGED - 1,)}
