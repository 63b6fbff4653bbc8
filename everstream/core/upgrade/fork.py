"""A pipeline that resumes from the savepoint of another: same state, separate output.

Output that sinks had prepared belongs to the run that took the savepoint, which commits it or has
done so. The fork takes over everything else: its sinks start empty, and receive everything that the
sources emit after the savepoint.
"""

from dataclasses import replace

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import DEAD_LETTERS, CheckpointRecord
from everstream.core.plan import Plan
from everstream.core.upgrade.compatibility import UpgradeOverrides
from everstream.pipeline.graph import Kind


def forked(manifest: EpochManifest, plan: Plan) -> EpochManifest:
    """The manifest that a run of this pipeline in another store begins with."""
    sinks = {node.name for node in plan.graph.of_kind(Kind.SINK)}
    left = UpgradeOverrides(dropped=frozenset(sinks)).applied(manifest)
    rejecting = [node.name for node in plan.graph.nodes.values() if node.dead_letters is not None]
    records = {shard: _without_output(r, rejecting) for shard, r in left.records.items()}
    return replace(left, records=records, returns=())


def _without_output(record: CheckpointRecord, rejecting: list[str]) -> CheckpointRecord:
    letters = {name + DEAD_LETTERS: "" for name in rejecting if name in record.operators}
    return replace(record, aliases={**record.aliases, **letters}, uncommitted={})
