"""Suites that any source or sink can be run through, for users who write their own."""
