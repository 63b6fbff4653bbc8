"""Keeps a run alive: heartbeats, the standby, retries at start-up."""
