"""The comparison of recovery schemes: real processes, really killed."""
