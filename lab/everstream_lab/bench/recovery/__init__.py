"""How long recoveries take: of a worker, of a driver, of a shard."""
