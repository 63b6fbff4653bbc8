"""The driver process of `everstream run`: loads the pipeline, runs it, reports to its supervisor.

`driver_process.py` starts it, as `python -m everstream.cli.runs.driver FD ASKS PARENT OPTIONS` or as a
fork. It sends events to the supervisor over FD and receives requests over ASKS. It never outlives the
supervisor, so a killed command leaves nothing running.
"""

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import IO, NoReturn

from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.die_with import die_with
from everstream.cli.runs.driver_process import HELD
from everstream.cli.runs.driver_requests import answering
from everstream.cli.runs.finding import load_pipeline
from everstream.cli.views.messages import (
    DriverFailed,
    DriverFinished,
    Fault,
    Message,
    Opened,
    Teller,
    write_message,
)
from everstream.core.registry import name_of
from everstream.engine.local.server_link import fork_from_here
from everstream.engine.reporting.listener import log_as_json
from everstream.engine.run import launch
from everstream.engine.settings.options import RunConfig
from everstream.errors import EnvironmentFault, EverstreamError, RunFailed, SparkGone, UserError
from everstream.observability.ui.views import Actions

JAVA_PATIENCE_S = 5.0
STOPPED_EARLY = "stopped before the first record; nothing had to be saved"


def main() -> None:
    descriptor, asks, parent = (int(argument) for argument in sys.argv[1:4])
    drive(descriptor, asks, parent, RunCommand.from_json(sys.argv[4]))


def drive(descriptor: int, asks: int, parent: int, command: RunCommand) -> NoReturn:
    """The whole life of the driver's process."""
    die_with(parent)
    os.set_inheritable(descriptor, False)
    os.set_inheritable(asks, False)
    for number in HELD:
        signal.signal(number, _interrupt)
    if command.options.engine == "local":
        fork_from_here(close=(descriptor, asks))
    telling = threading.Lock()
    with open(descriptor, "wb") as pipe:

        def tell(message: Message) -> None:
            with telling:  # answers come from other threads
                write_message(pipe, message)

        run_and_tell(command, tell, os.fdopen(asks, "rb"))
        stop_spark()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # do not wait for threads of an interrupted run


def run_and_tell(
    command: RunCommand, tell: Callable[[Message], None], asks: IO[bytes] | None = None
) -> None:
    """Run to the end; the last message reports how it ended."""
    teller = Teller(tell)
    if command.log_json:
        log_as_json()
    try:
        # The supervisor started us with these blocked: nothing handled them before.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        pipeline = load_pipeline(command.target, command.arguments)
        if command.rehearsal is not None:
            from everstream.audit.rehearsal import rehearsed

            pipeline = rehearsed(pipeline, command.rehearsal)
        if command.load or command.calibrate is not None:
            from everstream.cli.runs.under_load import loads_of, put_under_load

            put_under_load(pipeline, loads_of(command.load, command.calibrate), command.catch_up)
        store = command.store_of(pipeline.name)
        tell(Opened(pipeline.name, store, name_of(command.options.checkpoint)))
        options = replace(
            command.options,
            store=store,
            listener=teller,
            monitor=command.monitor(),
            timeout=None,  # the supervisor handles these three
            history=False,
            ui=False,
        )
        run = launch(pipeline, RunConfig.of(options))
        run.is_driver_of(command.command, command.resumes)
        if asks is not None:
            threading.Thread(target=answering, args=(asks, Actions(run), tell), daemon=True).start()
        tell(DriverFinished(run.here().to_json()))
    except KeyboardInterrupt:
        tell(DriverFailed(Fault.STOPPED, STOPPED_EARLY))
    except EverstreamError as error:
        tell(DriverFailed(_fault_of(error, teller.has_started), _text_of(error)))
    except Exception as error:
        # Our own bug, or one of PySpark's many classes: show the whole traceback.
        text = "".join(traceback.format_exception(error))
        tell(DriverFailed(Fault.RUN, f"Everstream broke; please report this:\n{text}"))


def stop_spark() -> None:
    """End Spark's Java process and wait for it, so that its last output is shown."""
    for number in HELD:
        signal.signal(number, signal.SIG_IGN)  # the run has ended; only SIGKILL would be faster
    if "pyspark" not in sys.modules:
        return
    from everstream.engine.spark.launcher import active_context, java_process

    context, java = active_context(), java_process()
    if context is not None:
        with suppress(Exception):  # Java may be gone, which py4j reports with many classes
            context.stop()
    if java is not None and java.stdin is not None:
        java.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            java.wait(timeout=JAVA_PATIENCE_S)
    for thread in threading.enumerate():
        if thread.name == "spark-stderr":
            thread.join(timeout=JAVA_PATIENCE_S)


def _fault_of(error: EverstreamError, has_started: bool) -> Fault:
    if isinstance(error, UserError) and not has_started:
        return Fault.USAGE
    if isinstance(error, SparkGone):
        return Fault.LOST
    # Exactly this class: connectors and stores have subclasses, and a retry would fail again.
    if has_started and isinstance(error, RunFailed) and type(error.cause) is EnvironmentFault:
        return Fault.LOST
    return Fault.RUN


def _text_of(error: EverstreamError) -> str:
    if isinstance(error, RunFailed) and error.cause is not None:
        return f"{error.message}\n{error.cause.message}"
    return str(error)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
