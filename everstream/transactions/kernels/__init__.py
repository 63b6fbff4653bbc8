"""Kernels: the source generated for a set of transactions, and how it is compiled."""
