"""Recovery of a large state spread over Spark tasks: one task per group of chains.

With the reads recorded by `fast`, chains no longer depend on each other, so any task can run any
chain. Each task opens the same log, computes the same assignment of chains to tasks, runs its own,
and returns the final values of its keys; the caller scatters them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from everstream.transactions.engine import TransactionEngine
from everstream.transactions.errors import LogError
from everstream.transactions.recovery import Inputs, TransactionRecovery
from everstream_lab.recovery.fast import AfterImages, FastRecovery

OpenEngine = Callable[[], TransactionEngine]
OpenInputs = Callable[[], Inputs]


def recover_on_spark(
    spark: Any, open_engine: OpenEngine, open_inputs: OpenInputs, tasks: int
) -> tuple[TransactionEngine, TransactionRecovery]:
    """A recovered engine, its chains replayed by `tasks` Spark tasks.

    `open_engine` and `open_inputs` run here and in every task, so the log and the source
    must be reachable from all of them; the engine must use recovery "fast".
    """
    engine = open_engine()
    scheme = _fast(engine)
    if tasks < 1:
        raise ValueError("tasks must be at least 1")

    def share(parts: Iterable[int]) -> Iterator[AfterImages]:
        for part in parts:
            worker = open_engine()
            yield _fast(worker).replay_share(open_inputs(), part, tasks)
            worker.close()

    images = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(share).collect()
    return engine, scheme.adopt(images)


def _fast(engine: TransactionEngine) -> FastRecovery:
    if not isinstance(engine.scheme, FastRecovery):
        raise LogError(
            f"recovery {engine.scheme.name!r} cannot be spread over tasks: its log has no recorded "
            "reads. Use 'fast', or 'delta', which has nothing to run again"
        )
    return engine.scheme
