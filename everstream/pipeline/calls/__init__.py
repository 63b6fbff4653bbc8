"""`map_async`: asks services outside the pipeline, many at once, and logs the answers."""
