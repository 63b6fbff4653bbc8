"""Measures what goes on while it goes on: a thread that looks at the machine and at the work done."""
