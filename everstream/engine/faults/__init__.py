"""Faults that a user requests: kills and injected errors."""
