"""The default engine: long-running Spark tasks."""
