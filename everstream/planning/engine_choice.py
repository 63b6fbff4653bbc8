"""Which engine: tasks that stay, or one Spark job per epoch (docs/engines.md).

Tasks that stay are faster in every way and take every graph, so they are the answer unless something
speaks for micro-batches: sockets that are forbidden, or far more shards than slots, and then only if
nobody waits for results shorter than an epoch takes at least.
"""

from dataclasses import dataclass

from everstream.pipeline.checkpointing import Engine
from everstream.planning.units import show_duration

LEAST_LATENCY_S = 0.3
"""Sooner than this a micro-batch rarely shows its results."""
MANY_PER_SLOT = 4
"""With so many shards per slot, those that share one wait for each other anyway."""


@dataclass(frozen=True)
class EngineChoice:
    """The engine, and why."""

    engine: Engine
    why: str
    warning: str | None = None


def choose(
    *,
    shards: int,
    cycles: bool = False,
    slots: int | None = None,
    sockets: bool = True,
    max_latency_s: float | None = None,
) -> EngineChoice:
    """sockets: whether workers may open them. max_latency_s: None if nobody has said."""
    soon = max_latency_s is not None and max_latency_s < LEAST_LATENCY_S
    if not sockets:
        warning = None
        if cycles:
            warning = (
                "records go round one hop per epoch: what goes round often takes that many epochs"
            )
        if soon and max_latency_s is not None:
            warning = (
                f"results within {show_duration(max_latency_s)} cannot be promised: an epoch of "
                f"micro-batches takes up to {show_duration(LEAST_LATENCY_S)} however little it reads"
            )
        return EngineChoice("microbatch", "workers may not open sockets", warning)
    if cycles:
        return EngineChoice("tasks", "records go round in this graph")
    if soon:
        return EngineChoice("tasks", "results are wanted sooner than a micro-batch takes")
    if slots is not None and shards >= MANY_PER_SLOT * slots and max_latency_s is not None:
        why = (
            f"{shards} shards take turns on {slots} slot(s), and results may take "
            f"{show_duration(max_latency_s)}"
        )
        return EngineChoice("microbatch", why)
    return EngineChoice("tasks", "nothing speaks for micro-batches, which are slower")
