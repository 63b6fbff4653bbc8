"""Aggregates: what each one keeps and how it merges, running per key and over local parts."""
