"""The Spark that the tests of one process share: starting one takes longer than most of them.

A run on another master stops this Spark and starts its own. So a test names `MASTER`, and says with
`workers=` how many processes it wants, unless it is about masters or for both engines.
"""

from pyspark.sql import SparkSession

from everstream.engine.spark.context import make_context

MASTER = "local[6]"


def shared_session() -> SparkSession:
    """A session on the Spark that this process has, or a new one, which tests do not stop."""
    return SparkSession(make_context(MASTER, "tests"))
