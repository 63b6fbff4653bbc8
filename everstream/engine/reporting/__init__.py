"""A run's reports: to listeners, logs, its history, the terminal and notebooks."""
