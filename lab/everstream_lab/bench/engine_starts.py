"""How long each engine takes from `pipeline.run()` to the first record, in a new Python.

The interpreter is warm: Everstream is imported and the pipeline built. The first run starts what an
engine needs (Java for Spark, the forking process for "local"), later runs of the process use it
again. The one record of a run is the time at which it was read: all processes of a machine share the
monotonic clock. `python -m everstream_lab.bench.engine_starts ENGINE MASTER RUNS` prints the times.
"""

import json
import subprocess
import sys
import time
from statistics import median

import everstream as es
from everstream.errors import RunFailed
from everstream.pipeline.checkpointing import EngineName
from everstream_lab.bench.report import Figure, at_most

LATER_RUNS = 5
AT_MOST_S = 0.5


def measure(engine: EngineName, master: str) -> list[Figure]:
    first_s, *later_s = _in_a_new_python(engine, master, 1 + LATER_RUNS)
    target = at_most(AT_MOST_S) if engine == "local" else None
    return [
        Figure(f"first run to first record, {engine}", round(first_s, 3), "s", target),
        Figure(
            f"later run to first record, {engine}",
            round(median(later_s), 3),
            "s",
            target,
            repetitions=tuple(round(one_s, 3) for one_s in later_s),
        ),
    ]


def _in_a_new_python(engine: str, master: str, runs: int) -> list[float]:
    command = [sys.executable, "-m", __name__, engine, master, str(runs)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(f"the engine {engine} did not start:\n{done.stderr[-2000:]}")
    times_s: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times_s


def when_read(start: int, stop: int) -> list[float]:
    return [time.monotonic()] * (stop - start)


def first_record_s(engine: EngineName, master: str) -> float:
    """From `run()` to its first record, in this process."""
    pipeline = es.Pipeline("starting")
    pipeline.source(es.FromFunction(when_read, total=1)).collect()
    began_s = time.monotonic()
    result = pipeline.run(engine=engine, master=master, progress=False)
    (read_s,) = result.collected()
    return float(read_s - began_s)


def main() -> None:
    engine, master, runs = sys.argv[1:4]
    print(json.dumps([first_record_s(engine, master) for _ in range(int(runs))]))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
