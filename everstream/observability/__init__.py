"""Observing a run: its history, metrics, traces, and the page."""
