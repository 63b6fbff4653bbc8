"""Spark's own process can end at any moment: how that looks to whoever asks it something then."""

from py4j.protocol import Py4JError
from pyspark import SparkContext

NO_ANSWER = (Py4JError, OSError, EOFError)
"""A connection that broke is py4j's error; a new one that is refused, or ends at once, is not."""


def is_gone(context: SparkContext) -> bool:
    """Whether Spark has ended, or was stopped."""
    try:
        return bool(context._jsc.sc().isStopped())
    except NO_ANSWER:
        return True
