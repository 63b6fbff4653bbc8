"""Performs what a shard decides, in a process of whatever engine; the engine fills a `EngineApi`."""
