"""The exactly-once audit: kills a user's own pipeline at random and compares what comes out."""
