"""What shards and workers measure of themselves."""
