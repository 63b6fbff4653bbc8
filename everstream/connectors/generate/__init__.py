"""Sources that make their records, and load patterns."""
