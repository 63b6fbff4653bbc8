"""What losses cost an epoch of micro-batches: caches of a large state, and a process in mid-epoch.

Two shards hold half of the state each. In some epochs the idle worker of the second one is killed
before its task begins, so that half of the state has to be read back; in others it dies in the middle
of its work. All other epochs are what these are compared with, in the same run.
"""

import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from statistics import median

from everstream.connectors.generate.sources import Range
from everstream.engine.run import run
from everstream.errors import RunFailed
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.report import Figure, Progress, at_most

CHUNK_BYTES = 1 << 20
EPOCHS = 24
WARM_EPOCHS = 5
LOST_IN = (8, 12, 16, 20)
"""Epochs before whose second stage a worker is killed."""
KILLED_IN = (10, 14, 18, 22)
"""Epochs in the middle of which one is."""


class Ambush(Operator):
    """Kills the worker that holds the second shard, while it is idle."""

    def __init__(self, pid_file: Path) -> None:
        self.pid_file = pid_file

    def process(self, record: int, ctx: Context) -> None:
        if record + 1 in LOST_IN:
            with suppress(ProcessLookupError):
                os.kill(int(self.pid_file.read_text()), signal.SIGKILL)
        ctx.emit(record)


class Holder(Operator):
    """Holds a large state, of which a little changes with every record."""

    def __init__(self, chunks: int, pid_file: Path) -> None:
        self.chunks = chunks
        self.pid_file = pid_file

    def on_start(self, ctx: Context) -> None:
        if not ctx.state.contains(0):
            for number in range(self.chunks):
                ctx.state.put(number, os.urandom(CHUNK_BYTES))

    def process(self, record: int, ctx: Context) -> None:
        if ctx.shard == 1:
            self.pid_file.write_text(str(os.getpid()))
        ctx.state.put(record % self.chunks, os.urandom(CHUNK_BYTES))
        ctx.emit(record)


def measure(
    *,
    state_bytes: int = 100 << 20,
    master: str = "local[2]",
    progress: Progress = lambda text: None,
) -> list[Figure]:
    """How much longer an epoch takes; medians of one run in which both happen several times."""
    progress(f"{state_bytes >> 20} MB of state, caches lost and workers killed")
    with tempfile.TemporaryDirectory(prefix="everstream-losses-") as folder:
        pid_file = Path(folder) / "worker"
        pipeline = Pipeline("losses")
        numbers = pipeline.source(Range(EPOCHS, batch=1), name="numbers")
        ambushed = numbers.process(Ambush(pid_file), name="ambush").broadcast()
        chunks = max(1, state_bytes // CHUNK_BYTES // 2)
        ambushed.process(Holder(chunks, pid_file), name="hold", shards=2).collect()
        result = run(
            pipeline,
            engine="microbatch",
            checkpoint=Coordinated(every_records=1),
            master=master,
            kill=[f"hold:1@before-snapshot#{epoch}" for epoch in KILLED_IN],
            progress=False,
        )
    if sorted(result.collected()) != sorted([*range(EPOCHS)] * 2):
        raise RunFailed("losses: the output is wrong")
    died = [report for report in result.recoveries if report.injected]
    if len(died) != len(KILLED_IN):
        raise RunFailed(f"losses: {len(died)} of {len(KILLED_IN)} workers were killed")
    took_s = {manifest.epoch: manifest.duration_s for manifest in result.checkpoints}
    plain = [s for epoch, s in took_s.items() if epoch not in (*LOST_IN, *KILLED_IN)][WARM_EPOCHS:]
    usual_s = median(plain)
    lost_s = median(took_s[epoch] for epoch in LOST_IN) - usual_s  # type: ignore[index]
    killed_s = median(took_s[epoch] for epoch in KILLED_IN) - usual_s  # type: ignore[index]
    return [
        Figure("epoch", round(usual_s, 3), "s"),
        Figure("half the caches lost, longer by", round(lost_s, 3), "s", at_most(0.3)),
        Figure("a worker killed, longer by", round(killed_s, 3), "s", at_most(1.0)),
    ]
