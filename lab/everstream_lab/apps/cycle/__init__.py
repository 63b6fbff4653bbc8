"""The life of a benchmark: made, configured, executed, measured, compared, thrown away."""
