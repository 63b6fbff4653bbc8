"""Spark DataFrames and streams as sources."""
