"""A journal: makes any source replayable."""
