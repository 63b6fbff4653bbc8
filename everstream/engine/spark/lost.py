"""Spark's process can end at any moment: how callers of Spark recognize that."""

import signal
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark import SparkContext

from everstream.engine.spark.launcher import is_stopped, java_process
from everstream.errors import SparkGone

NO_ANSWER = (Py4JError, OSError, EOFError)
"""A broken connection is py4j's error; a new one that is refused, or ends at once, is not."""
BY_SIGNAL = 128
"""The exit code of a shell whose process was killed is this plus the number of the signal."""
LAST_BREATH_S = 1.0
"""A connection can break a moment before its process has ended."""


def is_gone(context: SparkContext) -> bool:
    """Whether Spark has ended, or was stopped."""
    try:
        return is_stopped(context)
    except NO_ANSWER:
        return True


def job_failed(error: BaseException) -> str:
    """That a job failed, with the line that names the cause, of the many in Spark's error."""
    lines = str(error).strip().splitlines() or [repr(error)]
    cause = next((line for line in lines if "Exception" in line or "Error" in line), lines[0])
    return f"the Spark job failed: {cause}"


@contextmanager
def noticing_the_end(context: SparkContext) -> Iterator[None]:
    """Raise SparkGone in this block if a call to Spark fails because Spark has ended."""
    try:
        yield
    except NO_ANSWER as error:
        if not is_gone(context):
            raise
        raise SparkGone(f"Spark has ended: {error}") from error


def killed_while_starting(error: BaseException) -> str | None:
    """The signal that killed Spark's process before it could be used, if that is the cause.

    PySpark reports only that the process is gone. The process object knows how it ended, but
    PySpark does not expose it until the start succeeds: it is taken from the error's traceback.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    known = [frame.f_locals.get("proc") for frame in frames]
    known.append(java_process())
    for java in known:
        if isinstance(java, subprocess.Popen):
            return _signal_of(java)
    return None


def _signal_of(process: "subprocess.Popen[bytes]") -> str | None:
    try:
        code = process.wait(timeout=LAST_BREATH_S)
    except subprocess.TimeoutExpired:
        return None
    number = -code if code < 0 else code - BY_SIGNAL
    return signal.Signals(number).name if number in set(signal.Signals) else None
