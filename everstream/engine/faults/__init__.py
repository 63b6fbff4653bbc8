"""Faults that a user asks for: kills and injected errors."""
