"""Performs a shard's instructions in a process of any engine, which implements `EngineApi`."""
