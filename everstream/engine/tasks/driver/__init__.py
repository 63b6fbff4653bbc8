"""The driver of the tasks engine."""
