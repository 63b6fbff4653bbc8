"""Aggregates: what each of them keeps and merges, running per key and over local parts."""
