"""Where a run takes place: a Spark that suits it, and as many slots as it may have."""

from pyspark import SparkContext

from everstream.core.plan import Plan
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Engine
from everstream.pipeline.graph import Kind
from everstream.pipeline.source import Source
from everstream.spark.config import RunConfig
from everstream.spark.context import check_context, exposure, make_context, slots
from everstream.spark.sharing import Room, Share, no_slots_left


def find_room(config: RunConfig, plan: Plan, engine: Engine, others: tuple[Share, ...]) -> Room:
    """A Spark, and as many of its slots as this run may have."""
    context = _context(config, plan.graph.name, engine, others)
    hosts = hosts_for(config, context, plan, engine, others)
    if engine == "microbatch":
        return Room(context, hosts, 1)  # its jobs take turns, on whatever is free
    return Room(context, hosts, hosts + _own_slots(plan))


def _context(
    config: RunConfig, pipeline: str, engine: Engine, others: tuple[Share, ...]
) -> SparkContext:
    if config.spark is None:
        context = make_context(config.master, f"everstream {pipeline}", others)
    elif engine == "microbatch":  # whatever Spark does with its tasks, an epoch stays exact
        context = config.spark.sparkContext
    else:
        context = config.spark.sparkContext
        for warning in check_context(context):
            config.listener.note(warning, True)
    exposed = exposure(context)
    if exposed is not None:
        config.listener.note(exposed, True)
    return context


def _own_slots(plan: Plan) -> int:
    """Those that sources need for work of their own."""
    sources = [node.what for node in plan.graph.of_kind(Kind.SOURCE)]
    return sum(source.own_slots for source in sources if isinstance(source, Source))


def hosts_for(
    config: RunConfig,
    context: SparkContext,
    plan: Plan,
    engine: Engine,
    others: tuple[Share, ...] = (),
) -> int:
    """As many hosts as there are slots: more would wait for each other for ever.

    Where sources have work of their own for Spark, and other runs their shards, those keep theirs.
    """
    taken = 0 if engine == "microbatch" else _own_slots(plan)  # jobs take turns
    there_are = slots(context)
    free = there_are - sum(share.slots for share in others)
    if others and free < 1 + taken:
        raise no_slots_left(there_are, others)
    workers, available = config.workers, free - taken
    if available < 1:
        raise UserError(
            f"Spark has {available + taken} slot(s), the pipeline needs one, and its sources {taken} "
            f"of their own: run it on master 'local[{taken + 1}]', or a larger cluster."
        )
    if workers is not None and workers > available:
        used = f", of which other runs have {there_are - free}" if others else ""
        config.listener.note(
            f"{workers} workers were asked for but Spark has {there_are - taken} slot(s){used}: the "
            f"shards are packed onto {available} host(s)",
            True,
        )
    return min(workers or available, available)
