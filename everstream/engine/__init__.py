"""What all engines share: options, the handle of a run, its result and its store."""
