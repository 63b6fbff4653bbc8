"""What a run reports: to listeners, logs, its history, the terminal and notebooks."""
