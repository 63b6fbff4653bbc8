"""Measurements of what a pipeline is written with: each against the built-in or bare loop closest to it."""
