"""Forms of declared state beyond one value per key: with a time to live, maps and lists per key."""
