"""Where a run executes: a Spark that suits it, and as many slots as it may use."""

from typing import ClassVar

from pyspark import SparkContext

from everstream.core.plan import Plan
from everstream.engine.settings.options import RunConfig
from everstream.engine.slot_sharing import Share, SlotGrant, no_slots_left
from everstream.engine.spark.context import check_context, exposure, make_context, slots
from everstream.engine.spark.lost import noticing_the_end
from everstream.errors import UserError
from everstream.events import Note, WorkersLimited
from everstream.pipeline.graph import Kind
from everstream.pipeline.source import Source


class OnSpark:
    """The part of an engine that needs Spark: where a run executes."""

    keeps_slots: ClassVar[bool]
    """Whether a worker occupies its slot as long as the run lasts."""

    def reserve(self, config: RunConfig, plan: Plan, others: tuple[Share, ...]) -> SlotGrant:
        """A Spark, and as many of its slots as this run may use."""
        context = _context(config, plan.graph.name, self.keeps_slots, others)
        with noticing_the_end(context):
            workers = workers_for(config, context, plan, self.keeps_slots, others)
        if not self.keeps_slots:
            return SlotGrant(workers, 1, context)  # its jobs take turns on free slots
        return SlotGrant(workers, workers + config.spares + _own_slots(plan), context)

    def warm(self, config: RunConfig, plan: Plan) -> None:
        """Start Spark and its Python before they are needed."""
        context = _context(config, plan.graph.name, self.keeps_slots, ())
        with noticing_the_end(context):
            context.parallelize([0], 1).foreach(lambda _: None)


def _context(
    config: RunConfig, pipeline: str, keeps_slots: bool, others: tuple[Share, ...]
) -> SparkContext:
    if config.spark is None:
        context = make_context(config.master, f"everstream {pipeline}", others)
    else:
        context = config.spark.sparkContext
        # A job that keeps no slots stays exact whatever Spark does with its tasks.
        for warning in check_context(context) if keeps_slots else ():
            config.listener.on_event(Note("spark", warning, True))
    with noticing_the_end(context):
        exposed = exposure(context)
    if exposed is not None:
        config.listener.on_event(Note("spark", exposed, True))
    return context


def _own_slots(plan: Plan) -> int:
    """Slots that sources need for their own Spark jobs."""
    sources = [node.what for node in plan.graph.of_kind(Kind.SOURCE)]
    return sum(source.own_slots for source in sources if isinstance(source, Source))


def workers_for(
    config: RunConfig,
    context: SparkContext,
    plan: Plan,
    keeps_slots: bool,
    others: tuple[Share, ...] = (),
) -> int:
    """As many workers as there are slots: with more, workers would wait for each other forever.

    The sources' own Spark jobs, other runs and each spare keep their slots.
    """
    # Jobs that do not keep their slots take turns with those of sources.
    taken = _own_slots(plan) + config.spares if keeps_slots else 0
    there_are = slots(context)
    free = there_are - sum(share.slots for share in others)
    if others and free < 1 + taken:
        raise no_slots_left(there_are, others)
    workers, available = config.workers, free - taken
    if available < 1:
        sources = (
            f", its sources {taken - config.spares} for themselves" if _own_slots(plan) else ""
        )
        spares = f", and its spares {config.spares}" if config.spares else ""
        raise UserError(
            f"Spark has {available + taken} slot(s), the pipeline needs one{sources}{spares}: run it "
            f"on master 'local[{taken + 1}]', or a larger cluster."
        )
    if workers is not None and workers > available:
        used = f", of which other runs have {there_are - free}" if others else ""
        besides = f" besides {config.spares} for the spares" if config.spares else ""
        have = f"Spark has {there_are - taken} slot(s){used}{besides}"
        config.listener.on_event(WorkersLimited(workers, available, have))
    return min(workers or available, available)
