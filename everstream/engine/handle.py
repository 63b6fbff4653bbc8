"""`pipeline.start(...)`: a run that continues in the background while your program does other work.

`run` performs the run on the caller's thread, `start` on a separate thread; otherwise they are the
same. The handle forwards requests to the driver, and keeps requests that arrive before Spark has
started.
"""

import atexit
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from everstream.connectors.generate.load import Load
from everstream.core.checkpointing.newest import Newest
from everstream.core.ids import NO_EPOCH
from everstream.core.orders import Phase
from everstream.engine.reporting.listener import Listener
from everstream.engine.reporting.notebook import run_html
from everstream.engine.reporting.query_progress import QueryProgress
from everstream.engine.result import RunResult
from everstream.engine.signals import Stoppable, stopping_on_signals
from everstream.errors import RunFailed, UserError
from everstream.events import Progressed, RunEvent, RunStatus, sentence
from everstream.observability.history.run_view import Live
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.graph import Graph
from everstream.pipeline.tuning import resolved, tunable_in
from everstream.state.savepoints import Savepoint, checked_name, take_savepoint
from everstream.state.store import CheckpointStore

if TYPE_CHECKING:
    from everstream.engine.engine import RunControl
    from everstream.engine.settings.options import Turn

T = TypeVar("T")
NO_CHECKPOINTS = "this run takes no checkpoints: start it with checkpoint=es.Coordinated()."
NOT_STARTED = RunStatus(Phase.GATHERING, 0, 0, {}, NO_EPOCH, [])


class RunHandle(Stoppable):
    """A started run, which continues in the background.

    >>> pipeline = es.Pipeline("ticks").source(es.Range(10)).collect()
    >>> run = pipeline.start()
    >>> run.wait().records_out
    10

    As a context manager it stops the run, with a checkpoint, at the end of the block.
    """

    def __init__(
        self,
        graph: Graph,
        takes_checkpoints: bool,
        perform: Callable[["RunHandle"], RunResult],
        *,
        keeps_store: bool = False,
    ) -> None:
        self._graph = graph
        self._takes_checkpoints = takes_checkpoints
        self._keeps_store = keeps_store
        self._perform = perform
        self._lock = threading.Lock()
        self._driver: RunControl | None = None
        self._requests: list[Mapping[str, str]] = []
        self._asked: list[Future[int]] = []
        self._seen = NOT_STARTED
        self.live = Live()
        self._progress = QueryProgress()
        self.events: Newest[RunEvent] = Newest()
        """The events that have a sentence."""
        self.page: str | None = None
        """The link to the page of the run, with the token to see it, while it is served (`ui=`)."""
        self._ended = threading.Event()
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._waited_for = False
        self.in_background = False
        """Whether the run has a separate thread."""
        self._command: str | None = None
        self._goes_on = False

    @property
    def name(self) -> str:
        """The pipeline's."""
        return self._graph.name

    @property
    def ended(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return self._ended.is_set()

    def status(self) -> RunStatus:
        """The current status: phase, records so far, the newest stable epoch, failures."""
        return self._seen

    def stop(self) -> None:
        """Stop the run with a checkpoint, from which the next run resumes; `wait` for the end."""
        self.request_stop("requested")

    def wait(self, timeout: str | float | None = None) -> RunResult:
        """Wait for the run to end and return its result; raise its error if it failed.

        Ctrl-C on the main thread stops the run with a checkpoint; a second Ctrl-C stops it at once.
        timeout: raise a TimeoutError after this long; the run continues.
        """
        with stopping_on_signals(self):
            if not self._ended.wait(_seconds(timeout)):
                raise TimeoutError(f"'{self.name}' has not ended after {timeout}; it continues")
        self._waited_for = True
        atexit.unregister(self._program_ends)
        return self._outcome()

    def checkpoint(self, timeout: str | float | None = None) -> int:
        """Take a checkpoint now and return the number of its epoch when it is stable.

        It includes everything that `status` has shown so far. That work survives any later failure,
        and exactly-once sinks have made it visible.
        timeout: raise a TimeoutError after this long; the checkpoint is not cancelled.
        """
        if not self._takes_checkpoints:
            raise UserError(NO_CHECKPOINTS)
        with self._lock:
            if self._driver is None and not self.ended:
                asked: Future[int] = Future()
                self._asked.append(asked)
            elif self._driver is not None:
                asked = self._driver.ask_checkpoint()
            else:
                raise RunFailed("the run has ended and takes no more checkpoints")
        return _result(asked, timeout, "the checkpoint was not stable")

    def set_interval(self, every: str | float) -> None:
        """Change the checkpoint interval of this run; the next run uses its configured one.

        every: "5s", or seconds. Refused for protocols in which each shard has its own timer.
        """
        every_s = seconds(every)
        if not every_s > 0:
            raise UserError(f"every={every!r}: the time must be positive, as in every='10s'.")
        if not self._takes_checkpoints:
            raise UserError(NO_CHECKPOINTS)
        self._running().set_interval(every_s).result()

    def kill_worker(self, worker: int) -> None:
        """Kill a worker's process with SIGKILL to watch the run recover: `kill=`, but now.

        worker: its number, as in `metrics()["workers"]`.
        """
        self._running().kill_worker(worker).result()

    def scale(self, shards: Mapping[str, int], timeout: str | float | None = None) -> None:
        """Change the number of shards of operators in this active run, like `everstream scale`.

        shards: {"count": 4}. Returns when the new shards are running; later runs keep them.
        timeout: raise a TimeoutError after this long; the change is not cancelled.
        """
        _result(self._running().scale(shards), timeout, "the new shards were not running")

    def metrics(self) -> dict[str, Any]:
        """All measurements of the run: operators, shards, workers, checkpoints, failures.

        The same data as the page of `everstream run --ui` and its `/api/view`; unknown figures are
        None. `polars.DataFrame(run.metrics()["shards"])` makes a table of one part.
        """
        return self.live.view()

    def recent_progress(self) -> list[dict[str, Any]]:
        """The last 100 stable epochs with the fields of Spark's StreamingQueryProgress, oldest first.

        `id`, `runId`, `name`, `timestamp`, `batchId` (the epoch), `batchDuration` (ms), `numInputRows`,
        `inputRowsPerSecond`, `processedRowsPerSecond`, `sources` and `sink`. `json.dumps` takes each.
        """
        return self._progress.recent()

    def savepoint(self, name: str, timeout: str | float | None = None) -> Savepoint:
        """Take a checkpoint now and keep it under this name until it is deleted.

        A later run can roll back to it (`everstream rewind STORE --to NAME`), or start from it in
        another store (`start_from="STORE@NAME"`).
        """
        checked_name(name)
        if not self._keeps_store:
            raise UserError("this run has no permanent store: start it with store='folder'.")
        epoch = self.checkpoint(timeout)
        assert self._driver is not None
        return take_savepoint(CheckpointStore(self._driver.blobs), name, time.time(), epoch)

    def tune(
        self,
        *,
        frequency: float | None = None,
        pattern: str | Load | None = None,
        batch: int | str | None = None,
        interval: str | float | None = None,
        operator: str | None = None,
    ) -> None:
        """Change load or batches while the run is active, like `everstream tune`.

        frequency: records per second of paced sources (es.Paced).
        pattern: another es.Load for paced sources, or its text, "wave,10s,100,1000".
        batch, interval: the maximum records per batch, and how long a batch waits; "off": no limit.
        operator: only the operator with this name; default: all that have such a setting.
        """
        if isinstance(pattern, Load) and pattern.text is None:
            raise UserError("a Load given as a function cannot be sent to a run: pass its text.")
        said = {
            "frequency": frequency,
            "pattern": pattern.text if isinstance(pattern, Load) else pattern,
            "batch": batch,
            "interval": f"{interval}s" if isinstance(interval, int | float) else interval,
        }
        prefix = "" if operator is None else f"{operator}."
        wishes = {
            f"{prefix}{name}": str(value) for name, value in said.items() if value is not None
        }
        resolved(wishes, tunable_in(self._graph))  # reports mistakes to the caller
        with self._lock:
            if self.ended:
                raise UserError(
                    "the run has ended: 'everstream tune STORE' changes the next run's settings."
                )
            if self._driver is None:
                self._requests.append(wishes)
            else:
                self._driver.tune(wishes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if error is None:
            self.wait()
        else:
            self._ended.wait()  # the block's own error is raised, not the run's
            self._waited_for = True

    def __repr__(self) -> str:
        return f"<run of '{self.name}': {'ended' if self.ended else self._seen.phase.value}>"

    def _repr_html_(self) -> str:
        view = self.metrics()
        return run_html({**view, "pipeline": view["pipeline"] or self.name})

    def _running(self) -> "RunControl":
        with self._lock:
            if self._driver is None or self.ended:
                raise UserError("the run has not started, or has ended: this needs an active run.")
            return self._driver

    # For the code that performs the run.

    def request_stop(self, reason: str) -> None:
        """Stop with a checkpoint. Safe from a signal handler or another thread."""
        super().request_stop(reason)
        if self._driver is not None:
            self._driver.request_stop(reason)

    def is_driver_of(self, command: str, goes_on: bool) -> None:
        """This process was started by a supervisor for that command.

        goes_on: an earlier driver of this command, which has died, held the store before.
        """
        self._command, self._goes_on = command, goes_on

    def belongs_to(self, turn: "Turn") -> "Turn":
        """The same turn, marked with the command that this driver belongs to."""
        if self._command is None:
            return turn
        return replace(turn, command=self._command, goes_on=self._goes_on)

    def attach(self, driver: "RunControl") -> None:
        """The run has a driver now: forward the requests made so far to it."""
        with self._lock:
            self._driver = driver
            for wishes in self._requests:
                driver.tune(wishes)
            for asked in self._asked:
                driver.ask_checkpoint().add_done_callback(_answering(asked))
            self._asked = []
        if self._stop_reason is not None:
            driver.request_stop(self._stop_reason)

    def here(self) -> RunResult:
        """Perform the run on this thread."""
        self._to_the_end()
        return self._outcome()

    def _outcome(self) -> RunResult:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def start(self) -> Self:
        """Perform the run on a separate thread. If the program ends first, the run is stopped."""
        self.in_background = True
        name = f"everstream-{self.name}"
        # A daemon: the exit hook below waits for it and prints a message.
        threading.Thread(target=self._to_the_end, name=name, daemon=True).start()
        atexit.register(self._program_ends)
        return self

    def _to_the_end(self) -> None:
        try:
            self._result = self._perform(self)
        except BaseException as error:  # raised by `here` or `wait`
            self._error = error
        with self._lock:
            left, self._asked = self._asked, []
            self._ended.set()
        for asked in left:
            asked.set_exception(RunFailed("the run ended before this checkpoint was taken"))

    def _program_ends(self) -> None:
        """Perhaps no caller waited for the run: report how it ended in any case."""
        if not self.ended:
            self._tell("the program is ending: stopping the run with a checkpoint")
            self.stop()
            self._ended.wait()
        if self._error is not None and not self._waited_for:
            self._tell(str(self._error) or type(self._error).__name__)

    def _tell(self, text: str) -> None:
        print(f"everstream: '{self.name}': {text}", file=sys.stderr)


class Seeing(Listener):
    """Keeps the status, the view and the events of a run for its handle and its result."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle

    def on_event(self, event: RunEvent) -> None:
        self._handle._progress.take(event)
        if isinstance(event, Progressed):
            self._handle._seen = event.status
            return
        self._handle.live.take(event)
        if sentence(event) is not None:
            self._handle.events.append(event)


def _seconds(timeout: str | float | None) -> float | None:
    return None if timeout is None else seconds(timeout)


def _result(asked: Future[T], timeout: str | float | None, problem: str) -> T:
    try:
        return asked.result(_seconds(timeout))
    except NotYet:
        raise TimeoutError(f"{problem} after {timeout}") from None


def _answering(asked: Future[int]) -> Callable[[Future[int]], None]:
    def answer(done: Future[int]) -> None:
        error = done.exception()
        if error is not None:
            asked.set_exception(error)
        else:
            asked.set_result(done.result())

    return answer
