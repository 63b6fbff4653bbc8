"""A store as Spark sees it: output, state, checkpoints and dead letters as DataFrames.

`spark.read.format("everstream")` and `spark.readStream.format("everstream")` work on the stores of
every run, during the run and after it. They only read. `df.writeStream.format("everstream")` writes the
batches of a streaming query to a topic, a folder that they read with `option("what", "topic")`. Where Everstream is installed, Spark finds
the format without further setup, because it looks for modules called `pyspark_...`; `register` is
for sessions that cannot find it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Register `spark.read.format("everstream")` in a session that has not found it.

    Spark looks for it where packages are installed or in `PYTHONPATH`. It does not see an editable
    install (`pip install -e`); there, call this once per session.
    """
    from pyspark.errors import AnalysisException

    from everstream.inspection.datasource.source import EverstreamSource

    try:
        spark.dataSource.register(EverstreamSource)
    except AnalysisException as error:
        # Spark 4.0 refuses to register a format that it has found; later versions replace it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
