"""Event time: windows, late records, joins in time, and timers."""
