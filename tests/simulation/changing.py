"""Pipelines that are stopped, changed, and run again on the same store, in virtual time."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.orders import Outcome, Policy
from everstream.core.plan import make_plan
from everstream.core.scheme import ALIGNED, Scheme
from everstream.core.upgrade.compatibility import NO_OVERRIDES, UpgradeOverrides
from everstream.pipeline.describing import check_names
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.world import World
from everstream.state.store import CheckpointStore

Build = Callable[[Pipeline], Stream]
"""Everything but the sink."""


class Changing:
    """One store, and the versions of a pipeline that run on it."""

    def __init__(self, build: Build, seed: int = 0, scheme: Scheme = ALIGNED) -> None:
        self._seed = seed
        self.sink = "out"
        shape = Shape("changing", 3, lambda pipeline, _: self._finish(pipeline, build), dict)
        # No record waits for others, so that a story knows how far an epoch is.
        self.world = World(seed, shape, NO_FAULTS, scheme, Policy(every_s=0.03), latency_s=0.0)
        self.world.upload_s, self.world.driver_link_s = 0.005, 0.001
        # What is right depends on what is changed, and is for each story to say.
        self.world.safety.exactly_once = False
        self.notes: tuple[str, ...] = ()

    def _finish(self, pipeline: Pipeline, build: Build) -> None:
        build(pipeline).on_demand().sink(OutsideSink(self._seed), name=self.sink, shards=2)

    def stop_at(self, epoch: int) -> "Changing":
        """Run up to this epoch, and stop in good order."""
        self.world.when(f"epoch {epoch} is stable", self.world.stop)
        assert self.world.run().outcome is Outcome.STOPPED
        return self

    def change(self, build: Build, overrides: UpgradeOverrides = NO_OVERRIDES) -> "Changing":
        """What a run does before it starts: compare, and write down what was wished."""
        pipeline = Pipeline("changing")
        self._finish(pipeline, build)
        check_names(pipeline.graph)
        world = self.world
        plan = make_plan(pipeline, 3)
        self.notes = world.change(plan, overrides).notes
        return self

    def finish(self) -> Counter[Any]:
        """Run to the end; all that was ever shown."""
        self.world.resume()
        history = self.world.run()
        assert history.outcome is Outcome.FINISHED, (history.violations, history.notes)
        return self.shown()

    def shown(self) -> Counter[Any]:
        return self.world.outside.counts("out")

    def manifests(self) -> list[EpochManifest]:
        stored = CheckpointStore(self.world.disk).manifests()
        return [EpochManifest.from_json(manifest.body) for manifest in stored]

    def read_by(self, source: str) -> int:
        """How many records a source had given at the current checkpoint."""
        records = self.manifests()[0].records.values()
        return sum(record.counts[source][1] for record in records if source in record.counts)
