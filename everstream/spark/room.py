"""Where a run takes place: a Spark that suits it, and as many slots as it may have."""

from dataclasses import replace

from pyspark import SparkContext

from everstream.core.plan import Plan
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Engine
from everstream.pipeline.graph import Kind
from everstream.pipeline.source import Source
from everstream.spark.config import RunConfig
from everstream.spark.context import check_context, exposure, make_context, slots
from everstream.spark.gone import noticing_the_end
from everstream.spark.listener import Listener
from everstream.spark.sharing import Room, Share, no_slots_left


def find_room(config: RunConfig, plan: Plan, engine: Engine, others: tuple[Share, ...]) -> Room:
    """A Spark, and as many of its slots as this run may have."""
    context = _context(config, plan.graph.name, engine, others)
    with noticing_the_end(context):
        hosts = hosts_for(config, context, plan, engine, others)
    if engine == "microbatch":
        return Room(context, hosts, 1)  # its jobs take turns, on whatever is free
    return Room(context, hosts, hosts + config.spares + _own_slots(plan))


def warm(config: RunConfig, plan: Plan, engine: Engine) -> None:
    """Have Spark and its Python ready before they are needed; nothing is said of it yet."""
    quiet = replace(config, listener=Listener())
    context = _context(quiet, plan.graph.name, engine, ())
    with noticing_the_end(context):
        context.parallelize([0], 1).foreach(lambda _: None)


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
    with noticing_the_end(context):
        exposed = exposure(context)
    if exposed is not None:
        config.listener.note(exposed, True)
    return context


def _own_slots(plan: Plan) -> int:
    """Those that sources need for work of their own."""
    sources = [node.what for node in plan.graph.of_kind(Kind.SOURCE)]
    return sum(source.own_slots for source in sources if isinstance(source, Source))


def _besides(spares: int) -> str:
    return f" besides {spares} for the spares" if spares else ""


def hosts_for(
    config: RunConfig,
    context: SparkContext,
    plan: Plan,
    engine: Engine,
    others: tuple[Share, ...] = (),
) -> int:
    """As many hosts as there are slots: more would wait for each other for ever.

    Where sources have work of their own for Spark, and other runs their shards, those keep theirs.
    Each spare has one, too.
    """
    # Jobs of micro-batches take turns.
    taken = 0 if engine == "microbatch" else _own_slots(plan) + config.spares
    there_are = slots(context)
    free = there_are - sum(share.slots for share in others)
    if others and free < 1 + taken:
        raise no_slots_left(there_are, others)
    workers, available = config.workers, free - taken
    if available < 1:
        sources = f", its sources {taken - config.spares} of their own" if _own_slots(plan) else ""
        spares = f", and its spares {config.spares}" if config.spares else ""
        raise UserError(
            f"Spark has {available + taken} slot(s), the pipeline needs one{sources}{spares}: run it "
            f"on master 'local[{taken + 1}]', or a larger cluster."
        )
    if workers is not None and workers > available:
        used = f", of which other runs have {there_are - free}" if others else ""
        config.listener.note(
            f"{workers} workers were asked for but Spark has {there_are - taken} slot(s){used}"
            f"{_besides(config.spares)}: the "
            f"shards are packed onto {available} host(s)",
            True,
        )
    return min(workers or available, available)
