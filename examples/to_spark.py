"""Hands the output of a pipeline to Spark SQL: records become rows of a Spark DataFrame.

Bring your own session: a pipeline and your other Spark jobs share it. A session must let tasks
fail and be started again, so a local master is written `local[SLOTS,FAILURES]`.
"""

from pyspark.sql import DataFrame, SparkSession

import everstream as es

pipeline = es.Pipeline("to-spark")
(
    pipeline.source(es.TextLines("books/*.txt"), name="lines")
    .flat_map(lambda line: [word.strip(".,:").lower() for word in line.split()])
    .key_by(lambda word: word)
    .fold(init=int, update=lambda count, word: count + 1, name="count", shards=2)
    .collect()
)


def most_frequent(spark: SparkSession) -> DataFrame:
    """Every change of a count came out; the largest one per word is the last."""
    counts = pipeline.run(spark=spark).to_spark(spark).toDF("word", "count")
    return counts.groupBy("word").max("count").toDF("word", "count").orderBy("count", "word")


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2,1000000]").getOrCreate()
    most_frequent(session).show()
    session.stop()
