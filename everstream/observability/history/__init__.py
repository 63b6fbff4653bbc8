"""The events of a run: kept in its store as plain entries, and made into a view and traces."""
