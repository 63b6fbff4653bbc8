"""The methods of streams, grouped by purpose."""
