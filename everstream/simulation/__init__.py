"""The core in virtual time, on a seeded scheduler, with faults at every step.

The shards, operators and the coordinator are the real ones; only time, the network, the disk and
Spark are simulated. One seed is one history, the same every time.
"""
