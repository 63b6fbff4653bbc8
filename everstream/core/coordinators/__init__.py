"""Decide for the whole run: when it checkpoints, which shards roll back, when it ends."""
