"""The events of a run: stored as plain entries, and turned into a view and traces."""
