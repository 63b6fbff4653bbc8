"""Spark, as all engines need it: a context configured for a run, and its slots."""
