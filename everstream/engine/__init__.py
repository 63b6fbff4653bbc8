"""What engines have in common: options, the handle of a run, its result, its store."""
