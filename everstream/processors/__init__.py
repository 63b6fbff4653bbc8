"""Spark's stateful processors, run unchanged: what `transform_with_state` adds to a pipeline."""
