"""Decide for the whole run: when it checkpoints, who goes back after a failure, when it ends."""
