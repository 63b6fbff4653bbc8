"""Everstream."""
