"""The faults of a simulation."""
