"""Kernels: the source that is written for a set of transactions, and how it is compiled."""
