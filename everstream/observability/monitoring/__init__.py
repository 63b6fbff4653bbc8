"""Sampling while a program runs: a thread that measures the machine and the work done."""
