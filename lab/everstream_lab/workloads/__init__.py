"""Workloads of the papers."""
