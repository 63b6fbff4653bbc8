"""Sources that generate their records, and load patterns."""
