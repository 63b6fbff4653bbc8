"""State per key: what can be declared, where it is kept, and how it moves when shards change."""
