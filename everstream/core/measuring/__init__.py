"""The measurements of shards and workers."""
