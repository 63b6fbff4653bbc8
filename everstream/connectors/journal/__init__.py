"""A journal: makes a source replayable that is not."""
