"""The comparison of checkpoint protocols: a grid of runs, what each measures, and the report."""
