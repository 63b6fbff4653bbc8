"""A worker: a Python process that runs shards."""
