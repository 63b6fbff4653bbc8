"""The methods of streams, by what they do."""
