"""Spark, as all engines need it: a context that suits a run, and its slots."""
