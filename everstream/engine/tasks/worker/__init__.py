"""A worker: the Python process of one Spark task, which runs shards."""
