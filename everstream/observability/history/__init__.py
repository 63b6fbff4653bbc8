"""What a run tells of itself, as plain entries: kept in its store, sent to its monitor, made into a view."""
