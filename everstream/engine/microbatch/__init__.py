"""Engine "microbatch": each epoch of a pipeline is one Spark job, and Spark moves the records."""
