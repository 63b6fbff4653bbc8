"""Event time: windows, late records, and joins in time."""
