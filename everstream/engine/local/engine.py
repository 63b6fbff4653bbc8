"""The engine "local": the same workers as with "tasks", forked on this machine."""

import os
import re

from everstream.core.plan import Plan
from everstream.engine.continuous.run import drive
from everstream.engine.engine import EngineEnd, EngineJob
from everstream.engine.local.server_link import server_link
from everstream.engine.local.workers import LocalWorkers
from everstream.engine.settings.options import RunConfig
from everstream.engine.slot_sharing import Share, SlotGrant
from everstream.errors import UserError
from everstream.pipeline.graph import Kind
from everstream.pipeline.source import Source

ON_SPARK = 'use engine="tasks", which runs on Spark'


class LocalEngine:
    """Long-running processes of this machine; a small supervisor restarts one that is killed."""

    def check(self, config: RunConfig, plan: Plan) -> None:
        config.scheme.check(plan)
        if config.spark is not None:
            raise UserError(f'engine="local" does not use Spark: leave spark= out, or {ON_SPARK}.')
        _slots(config.master)
        for node in plan.graph.of_kind(Kind.SOURCE):
            if isinstance(node.what, Source) and node.what.needs_spark:
                kind = type(node.what).__name__
                raise UserError(
                    f"'{node.name}' reads from Spark ({kind}), which engine=\"local\" does not "
                    f"start: {ON_SPARK}."
                )
        server_link().preload()  # it gets ready while the store is opened

    def reserve(self, config: RunConfig, plan: Plan, others: tuple[Share, ...]) -> SlotGrant:
        return SlotGrant(config.workers or _slots(config.master))

    def warm(self, config: RunConfig, plan: Plan) -> None:
        server_link()

    def drive(self, job: EngineJob) -> EngineEnd:
        return drive(job, LocalWorkers())


def _slots(master: str) -> int:
    """How many workers this machine runs, as the master names it: local, local[4] or local[*]."""
    local = re.fullmatch(r"local(?:\[\s*(\*|\d+)\s*(?:,.*)?\])?", master)
    if local is None:
        raise UserError(
            f"engine=\"local\" runs on this machine only: leave '{master}' out, or {ON_SPARK}."
        )
    if local[1] == "*":
        return len(os.sched_getaffinity(0))
    return max(1, int(local[1] or 1))
