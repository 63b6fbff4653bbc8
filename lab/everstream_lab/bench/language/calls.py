"""Calls per second of `map_async`, with its log and checkpoints, against a bare asyncio loop."""

import asyncio
import tempfile
import time
from statistics import median_high

from everstream.connectors.collect import Collect
from everstream.connectors.generate.sources import Range
from everstream.errors import RunFailed
from everstream.pipeline.calls.options import RetryAfter
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.language.service import Client, service
from everstream_lab.bench.report import Figure, Progress, at_least

CONCURRENCY = 50
RETRIES = 5


async def _bare(client: Client, calls: int) -> tuple[list[int], float]:
    """What a user would write without a pipeline: tasks that take the next number, and retry."""
    numbers, results = iter(range(calls)), []

    async def work() -> None:
        for number in numbers:
            for _ in range(RETRIES):
                try:
                    results.append(await client(number))
                    break
                except RetryAfter as error:
                    await asyncio.sleep(error.retry_after)

    began_s = time.monotonic()
    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    return results, time.monotonic() - began_s


class _Stamp(Operator):
    """Passes answers on with the time at which they came."""

    def process_batch(self, batch: list[int], ctx: Context) -> None:  # type: ignore[override]
        now_s = time.monotonic()
        ctx.emit_batch([(number, now_s) for number in batch])


def _piped(client: Client, calls: int) -> tuple[list[int], float]:
    """From the first answer to the last: starting a run is not what is measured."""
    pipeline = Pipeline("calls")
    numbers = pipeline.source(Range(calls, batch=500), name="numbers")
    answers = numbers.map_async(
        client, concurrency=CONCURRENCY, retries=RETRIES, backoff=0, ordered=False, name="ask"
    )
    answers.process(_Stamp(), name="stamp").sink(Collect(), name="out")
    with tempfile.TemporaryDirectory(prefix="everstream-calls-") as store:
        result = pipeline.run(
            engine="local",
            workers=1,
            store=store,
            checkpoint=Coordinated(every="1s"),
        )
    came = result.collected("out")
    return [number for number, _ in came], max(at for _, at in came) - min(at for _, at in came)


def figures(rounds: int, progress: Progress, calls: int = 10_000) -> list[Figure]:
    """Both in turn, each round with the same questions."""
    expected = [2 * number for number in range(calls)]
    bare: list[float] = []
    piped: list[float] = []
    with service() as port:
        for number in range(rounds):
            progress(f"calls, round {number + 1} of {rounds}")
            for name, times in (("bare", bare), ("piped", piped)):
                client = Client(port, f"{name}{number}")
                if name == "bare":
                    answers, took_s = asyncio.run(_bare(client, calls))
                else:
                    answers, took_s = _piped(client, calls)
                if sorted(answers) != expected:
                    raise RunFailed(f"{name}: the answers are not those of the service")
                times.append(calls / took_s)
    ratio = median_high(mine / its for mine, its in zip(piped, bare, strict=True))
    return [
        Figure.median("bare asyncio loop", bare, "calls/s"),
        Figure(
            "map_async, logged, a checkpoint each second",
            median_high(piped),
            "calls/s",
            at_least(0.9, "ratio"),
            ratio,
            tuple(piped),
        ),
    ]
