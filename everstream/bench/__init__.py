"""Workloads, measurements and reports."""
