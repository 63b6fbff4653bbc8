"""The local engine: exact after kills, without Spark, and its stores continue on Spark and back."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import everstream as es
from everstream.core.ids import TaskNumber
from everstream.core.orders import Outcome
from everstream.engine.local import server_link as link_module
from everstream.engine.local.messages import COMPLETED, Ended, Fork, RunBegins
from everstream.engine.local.server_link import server_link
from everstream.engine.local.workers import LocalWorkers
from everstream.engine.reporting.listener import Listener
from everstream.events import RunEvent, WorkerStarted
from tests.gated_numbers import Gated
from tests.output import rows_in
from tests.processes import wait_until_gone
from tests.spark import MASTER

NUMBERS = 40_000
KEYS = 13


def sums(folder: Path, source: es.Source[int] | None = None) -> es.Pipeline:
    """Each record, with the running sum of its key, as a line: a change anywhere is visible."""
    pipeline = es.Pipeline("sums")
    (
        pipeline.source(source or es.Range(NUMBERS, batch=500))
        .key_by(lambda number: number % KEYS)
        .fold(init=int, update=lambda total, number: total + number, shards=2)
        .sink(es.JsonLines(str(folder / "out")))
    )
    return pipeline


def expected() -> Counter[tuple[int, int]]:
    """What a plain program writes."""
    totals = [0] * KEYS
    rows: Counter[tuple[int, int]] = Counter()
    for number in range(NUMBERS):
        totals[number % KEYS] += number
        rows[number % KEYS, totals[number % KEYS]] += 1
    return rows


def assert_exact(folder: Path) -> None:
    want, got = expected(), rows_in(folder / "out")
    assert (sum((want - got).values()), sum((got - want).values())) == (0, 0)


def run(folder: Path, **options: Any) -> es.RunResult:
    return sums(folder).run(
        engine="local",
        store=folder / "store",
        checkpoint=es.Coordinated(every="50ms"),
        **options,
    )


def test_killed_workers_are_replaced_and_the_output_is_exact(tmp_path: Path) -> None:
    kills = ["fold:0@3000", "fold:1@6000", "range:0@15000", "fold:1@12000"]
    result = run(tmp_path, kill=kills, workers=2)
    assert result.outcome is Outcome.FINISHED
    assert len(result.recoveries) >= 3
    assert_exact(tmp_path)


def test_a_store_goes_from_the_local_engine_to_spark_and_back(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def run_to(number: int, engine: Any, kill: str) -> es.RunResult:
        gate.write_text(str(number))
        return sums(tmp_path, Gated(gate, NUMBERS, batch=500)).run(
            engine=engine,
            master=MASTER,
            store=tmp_path / "store",
            checkpoint=es.Coordinated(every="50ms"),
            kill=[kill],
            until=lambda status: bool(status.records_read >= number and status.recoveries),
        )

    first = run_to(10_000, "local", "fold:0@2000")
    second = run_to(25_000, "tasks", "fold:1@2000")
    third = run_to(NUMBERS, "local", "fold:0@2000")
    assert [run.outcome for run in (first, second)] == [Outcome.STOPPED] * 2
    assert third.outcome is Outcome.FINISHED or third.records_in == NUMBERS
    assert all(run.recoveries for run in (first, second, third))
    assert 0 < second.resumed_from < third.resumed_from
    assert_exact(tmp_path)


def test_a_run_needs_neither_spark_nor_java(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "import everstream as es\n"
        "result = es.Pipeline('ten').source(es.Range(10)).collect().run(engine='local')\n"
        "assert sorted(result.collected()) == list(range(10))\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": ""}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_the_compiler_that_a_program_has_loaded_is_ready_in_its_workers() -> None:
    pytest.importorskip("numba")
    pipeline = es.Pipeline("compiled")
    pipeline.source(es.FromFunction(_compiled_here, total=1)).collect()
    assert pipeline.run(engine="local", master="local[1]").collected() == [True]


def _compiled_here(start: int, stop: int) -> list[bool]:
    """Whether Numba had been set up before this process began to work."""
    numba = sys.modules.get("numba")
    return [numba is not None and bool(numba.core.registry.cpu_target.target_context._defns)]


def test_a_fork_server_that_is_killed_is_replaced_with_its_workers(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.write_text("10000")

    class KillingServer(Listener):
        def __init__(self) -> None:
            self.started: list[WorkerStarted] = []

        def on_event(self, event: RunEvent) -> None:
            if isinstance(event, WorkerStarted):
                self.started.append(event)
                if len(self.started) == 4:
                    gate.write_text(str(NUMBERS))
                if len(self.started) == 2:
                    parent = int(Path(f"/proc/{event.pid}/stat").read_text().split()[3])
                    assert parent != os.getpid()
                    os.kill(parent, signal.SIGKILL)

    killing = KillingServer()
    result = sums(tmp_path, Gated(gate, NUMBERS, batch=500)).run(
        engine="local",
        store=tmp_path / "store",
        checkpoint=es.Coordinated(every="50ms"),
        workers=2,
        listener=killing,
    )
    assert result.outcome is Outcome.FINISHED
    assert len(killing.started) == 4
    assert_exact(tmp_path)


def test_a_function_that_ends_its_process_is_a_crash_even_with_code_zero(tmp_path: Path) -> None:
    marker = tmp_path / "once"

    def leave_once(number: int) -> int:
        if number == 700 and not marker.exists():
            marker.touch()
            os._exit(0)
        return number

    pipeline = es.Pipeline("leaving").source(es.Range(1000, batch=100)).map(leave_once)
    result = pipeline.collect().run(engine="local")
    assert sorted(result.collected()) == list(range(1000))
    assert len(result.recoveries) == 1


def test_workers_see_the_folder_the_environment_and_the_path_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_link()  # started before anything of this changes
    (tmp_path / "only_here.py").write_text("ANSWER = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERSTREAM_TEST_WORD", "hello")
    monkeypatch.syspath_prepend(str(tmp_path))

    def look(number: int) -> tuple[str, str, int]:
        import only_here  # type: ignore[import-not-found]

        return os.getcwd(), os.environ["EVERSTREAM_TEST_WORD"], only_here.ANSWER

    result = es.Pipeline("looking").source(es.Range(1)).map(look).collect().run(engine="local")
    assert result.collected() == [(str(tmp_path), "hello", 42)]


def test_workers_draw_different_random_numbers() -> None:
    import numpy as np

    def draw(number: int) -> float:
        return float(np.random.random())

    pipeline = es.Pipeline("drawing").source(es.Range(2, batch=1), shards=2).map(draw)
    result = pipeline.collect().run(engine="local", workers=2)
    assert len(set(result.collected())) == 2


@pytest.mark.parametrize(
    "options, message",
    [
        ({"master": "spark://nowhere:7077"}, "this machine only"),
        ({"master": "local-cluster[2,1,1024]"}, "this machine only"),
    ],
)
def test_what_needs_a_cluster_is_refused(options: dict[str, Any], message: str) -> None:
    pipeline = es.Pipeline("ten").source(es.Range(10)).collect()
    with pytest.raises(es.UserError, match=message):
        pipeline.run(engine="local", **options)


def test_what_needs_spark_is_refused(spark: Any) -> None:
    rows = es.Pipeline("frame").source(es.SparkDataFrame(spark.range(3))).collect()
    with pytest.raises(es.UserError, match="reads from Spark"):
        rows.run(engine="local")
    with pytest.raises(es.UserError, match="does not use Spark"):
        es.Pipeline("ten").source(es.Range(10)).collect().run(engine="local", spark=spark)


def test_a_killed_driver_leaves_no_worker_behind(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "import everstream as es\n"
        "def note(number):\n"
        "    open(f'pid-{os.getpid()}', 'w').close()\n"
        "    return number\n"
        "endless = es.Pipeline('endless').source(es.Paced(es.Range(10**9), 1000)).map(note)\n"
        "endless.collect().run(engine='local')\n"
    )
    driver = subprocess.Popen([sys.executable, str(program)], cwd=tmp_path)
    try:
        while not (noted := list(tmp_path.glob("pid-*"))):
            assert driver.poll() is None
            time.sleep(0.02)
        driver.send_signal(signal.SIGKILL)
    finally:
        driver.kill()
        driver.wait()
    wait_until_gone([int(path.name.removeprefix("pid-")) for path in noted])


class _Heard:
    """A listener of the fork server that keeps what it hears."""

    def __init__(self) -> None:
        self.ended: SimpleQueue[Ended | None] = SimpleQueue()

    def __call__(self, ended: Ended | None) -> None:
        self.ended.put(ended)


def forked(task: Any) -> Ended:
    import cloudpickle

    heard, link = _Heard(), server_link()
    begins = RunBegins("a-run", cloudpickle.dumps(task), os.getcwd(), dict(os.environ), sys.path)
    link.begin(begins, heard)
    link.send(Fork("a-run", TaskNumber(0), 0, 1))
    ended = heard.ended.get()
    link.end("a-run")
    assert ended is not None
    return ended


class _Task:
    def __init__(self, work: Any) -> None:
        self.work = work


def test_the_server_says_how_a_worker_ended() -> None:
    def fails(*_: Any) -> None:
        raise ValueError("no such thing")

    def dies(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(_Task(lambda *_: None)) == Ended("a-run", 1, 0, COMPLETED)
    assert forked(_Task(fails)) == Ended("a-run", 1, 1, "ValueError: no such thing")
    assert forked(_Task(dies)) == Ended("a-run", 1, -signal.SIGKILL, "")


def test_a_worker_that_cannot_start_is_reported_with_the_reason() -> None:
    def fails(*_: Any) -> None:
        raise OSError("no space left")

    workers = LocalWorkers()
    workers.start(_Task(fails), 1)  # type: ignore[arg-type]
    failures = []
    while len(failures) < 2:
        failures += workers.failed_starts({}, 0.0)
        time.sleep(0.01)
    assert [(failure.number, failure.attempt) for failure in failures[:2]] == [(0, 0), (0, 1)]
    assert "no space left" in str(failures[0].error)
    assert not workers.ended
    workers.leave(told=False)
    assert workers.ended


def test_a_fork_server_that_cannot_start_ends_the_run_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "_link", None)
    monkeypatch.setattr(link_module, "MODULE", "everstream.no_such_module")
    pipeline = es.Pipeline("ten").source(es.Range(10)).collect()
    with pytest.raises(es.EverstreamError, match="could not start") as failed:
        pipeline.run(engine="local", workers=1)
    assert "forks the workers has ended" in str(failed.value)


def test_only_a_task_that_was_started_gets_a_key() -> None:
    workers = LocalWorkers()
    workers.start(_Task(lambda *_: time.sleep(60)), 2)  # type: ignore[arg-type]
    (first, second) = sorted(workers._running)
    assert workers.is_running(TaskNumber(0), first)
    assert not workers.is_running(TaskNumber(0), second)
    assert not workers.is_running(TaskNumber(1), second + 100)
    workers.leave(told=False)
    assert not workers.is_running(TaskNumber(0), first)


def test_one_server_serves_all_runs_of_a_process() -> None:
    first = server_link()
    es.Pipeline("ten").source(es.Range(10)).collect().run(engine="local")
    assert server_link() is first
    assert link_module._link is first
