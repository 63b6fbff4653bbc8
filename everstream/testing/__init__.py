"""Conformance suites for sources and sinks, for users who write their own."""
