"""Engine "microbatch": one epoch of a pipeline is one Spark job, and Spark carries the records."""
