"""The decisions: shards, the coordinator and the checkpoint protocols, as state machines.

Nothing in here opens a socket or a file, reads a clock or starts a thread. Events go in,
instructions come out, and an engine (Spark, the simulator) performs them.
"""
